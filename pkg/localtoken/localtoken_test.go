package localtoken

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

const at = "127.0.0.1:7480"

// home makes the directory of token files a new one, and returns it.
func home(t *testing.T) string {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	return Dir()
}

func TestI1_DirFollowsTheEnvironment(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/x")
	t.Setenv("HOME", "/home/a")
	require.Equal(t, "/x/quartet", Dir())
	t.Setenv("XDG_STATE_HOME", "relative")
	require.Equal(t, "/home/a/.local/state/quartet", Dir())
	t.Setenv("HOME", "")
	require.Regexp(t, `/quartet-\d+$`, Dir())
}

func TestI1_OnlyLoopbackAddressesHaveAFile(t *testing.T) {
	dir := home(t)
	for addr, name := range map[string]string{
		at: at, "[::1]:7480": "[::1]:7480", "127.9.9.9:1": "127.9.9.9:1", "[::ffff:127.0.0.1]:7480": at,
		"[::1%lo]:1":     "[::1]:1",
		"localhost:7480": "", "10.0.0.1:7480": "", "0.0.0.0:7480": "", "[::]:7480": "", ":7480": "", "127.0.0.1": "",
		"127.0.0.1:0": "", "127.0.0.1:65536": "",
		"../127.0.0.1:7480": "", "example.com:7480": "", "": "", "127.0.0.1.evil.com:7480": "",
	} {
		want := ""
		if name != "" {
			want = filepath.Join(dir, name)
		}
		require.Equal(t, want, Path(addr), addr)
		if want == "" {
			must.Fail(Publish(addr, "qlt_x"))(t, "not a loopback address", addr)
			require.Empty(t, must.Value(Read(addr))(t))
		}
	}
}

func TestI1_ATokenIsThereWhileItsServerRuns(t *testing.T) {
	dir := home(t)
	token := must.Value(Read(at))(t)
	require.Empty(t, token, "no directory")
	f := must.Value(Publish(at, "qlt_one"))(t)
	require.Equal(t, "Authorization: Bearer qlt_one\n", string(must.Value(os.ReadFile(f.Path()))(t)))
	info := must.Value(os.Stat(f.Path()))(t)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	info = must.Value(os.Stat(dir))(t)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
	token = must.Value(Read(at))(t)
	require.Equal(t, "qlt_one", token)
	token = must.Value(Read("127.0.0.1:7481"))(t)
	require.Empty(t, token, "another address")

	// A later server takes the place; what the earlier one removes is its own file.
	later := must.Value(Publish(at, "qlt_two"))(t)
	require.NoError(t, f.Remove())
	token = must.Value(Read(at))(t)
	require.Equal(t, "qlt_two", token)
	require.NoError(t, later.Remove())
	require.NoError(t, later.Remove(), "it is idempotent")
	require.NoFileExists(t, later.Path())
	require.NoError(t, (*File)(nil).Remove())
	require.Empty(t, must.Value(os.ReadDir(dir))(t))
}

// A server that was killed leaves its file, and releases the lock.
func TestI1_ATokenOfAnEndedServerIsNotSent(t *testing.T) {
	dir := home(t)
	f := must.Value(Publish(at, "qlt_one"))(t)
	require.NoError(t, f.lock.Close())
	require.FileExists(t, f.Path())
	require.Empty(t, must.Value(Read(at))(t))
	// The next server of any address removes it, and no file that is not a token file.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes"), nil, 0o600))
	other := must.Value(Publish("127.0.0.1:7481", "qlt_two"))(t)
	require.NoFileExists(t, f.Path())
	require.FileExists(t, filepath.Join(dir, "notes"))
	require.NoError(t, other.Remove())
}

func TestI1_FilesThatOthersCouldUseAreRefused(t *testing.T) {
	dir := home(t)
	f := must.Value(Publish(at, "qlt_one"))(t)
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644} {
		require.NoError(t, os.Chmod(f.Path(), mode))
		_, err := Read(at)
		require.ErrorContains(t, err, "is open to other users", mode)
		require.ErrorContains(t, err, "chmod 600 "+f.Path())
	}
	require.NoError(t, os.Chmod(f.Path(), 0o600))
	must.Value(Read(at))(t)

	// A link, whatever it leads to, a directory and a pipe are no token files.
	require.NoError(t, os.Rename(f.Path(), filepath.Join(dir, "real")))
	require.NoError(t, os.Symlink(filepath.Join(dir, "real"), f.Path()))
	must.Refuse(Read(at))(t, syscall.ELOOP)
	require.NoError(t, os.Remove(f.Path()))
	require.NoError(t, os.Mkdir(f.Path(), 0o700))
	must.Fail(Read(at))(t, "is not a regular file")
	require.NoError(t, os.Remove(f.Path()))
	require.NoError(t, syscall.Mkfifo(f.Path(), 0o600))
	must.Fail(Read(at))(t, "is not a regular file")
	require.NoError(t, os.Remove(f.Path()))
	require.NoError(t, f.Remove())
}

func TestI1_FilesOfAnotherUserAreRefused(t *testing.T) {
	home(t)
	f := must.Value(Publish(at, "qlt_one"))(t)
	if os.Geteuid() != 0 {
		// Only root can give a file away; what another user owns is seen from the other side.
		require.ErrorContains(t, private("/", must.Value(os.Stat("/"))(t), "chmod 700"), "belongs to another user")
		return
	}
	require.NoError(t, os.Chown(f.Path(), 12345, -1))
	must.Fail(Read(at))(t, "belongs to another user")
	require.NoError(t, f.Remove())
	require.NoError(t, os.Chown(Dir(), 12345, -1))
	must.Fail(Publish(at, "qlt_one"))(t, "belongs to another user")
}

func TestI1_ContentOfAnotherFormIsRefused(t *testing.T) {
	home(t)
	for _, token := range []string{
		"", "one", "qk_one", "qlt_a b", "qlt_a\nX-Header: b",
		"qlt_" + strings.Repeat("x", maxFile),
	} {
		f := must.Value(Publish(at, token))(t)
		must.Fail(Read(at))(t, "does not have the form", "%.30q", token)
		require.NoError(t, f.Remove())
	}
	f := must.Value(Publish(at, "qlt_"+strings.Repeat("x", maxFile-len(header)-len("qlt_\n"))))(t)
	must.Value(Read(at))(t, "the largest")
	require.NoError(t, f.Remove())
}

func TestI1_TheDirectoryIsPrivate(t *testing.T) {
	dir := home(t)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.Chmod(dir, 0o755))
	must.Fail(Publish(at, "qlt_one"))(t, "chmod 700 "+dir)
	require.NoError(t, os.Remove(dir))
	elsewhere := t.TempDir()
	require.NoError(t, os.Symlink(elsewhere, dir))
	must.Fail(Publish(at, "qlt_one"))(t, "is not a directory")
	require.Empty(t, must.Value(os.ReadDir(elsewhere))(t), "nothing was written through the link")
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	must.Fail(Publish(at, "qlt_one"))(t, "is not a directory")
	t.Setenv("XDG_STATE_HOME", "/proc/nowhere")
	must.Fail(Publish(at, "qlt_one"))(t, "XDG_STATE_HOME")
}

// Publish replaces what is at its path and follows no link there.
func TestI1_NoLinkIsFollowed(t *testing.T) {
	home(t)
	dir := must.Value(Prepare())(t)
	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("kept"), 0o600))
	require.NoError(t, os.Symlink(victim, filepath.Join(dir, at)))
	f := must.Value(Publish(at, "qlt_one"))(t)
	require.Equal(t, "kept", string(must.Value(os.ReadFile(victim))(t)))
	require.Equal(t, "qlt_one", must.Value(Read(at))(t))
	require.NoError(t, f.Remove())
}

// Servers that start, and clients that read, at once do not disturb each other.
func TestI1_ManyAtOnce(t *testing.T) {
	home(t)
	var all sync.WaitGroup
	for _, addr := range []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"} {
		all.Go(func() {
			for range 100 {
				f, err := Publish(addr, "qlt_"+addr)
				if err == nil {
					var token string
					if token, err = Read(addr); err == nil && token != "qlt_"+addr {
						err = errors.New("read " + token)
					}
					err = errors.Join(err, f.Remove())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// The lock does not pass to programs that the server starts.
func TestI1_ChildrenDoNotHoldTheLock(t *testing.T) {
	home(t)
	f := must.Value(Publish(at, "qlt_one"))(t)
	child := exec.Command("cat")
	in := must.Value(child.StdinPipe())(t)
	require.NoError(t, child.Start())
	require.NoError(t, f.lock.Close())
	require.Empty(t, must.Value(Read(at))(t))
	require.NoError(t, in.Close())
	require.NoError(t, child.Wait())
}

func BenchmarkRead(b *testing.B) {
	b.Setenv("XDG_STATE_HOME", b.TempDir())
	f := must.Value(Publish(at, "qlt_one"))(b)
	for b.Loop() {
		if _, err := Read(at); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, f.Remove())
}

// Running finds the servers that run, and no file of one that ended.
func TestI1_ServersThatRun(t *testing.T) {
	home(t)
	all := must.Value(Running())(t)
	require.Empty(t, all, "no directory")
	var files []*File
	for _, addr := range []string{"127.0.0.1:9481", "127.0.0.1:8481", "127.0.0.1:7481"} {
		files = append(files, must.Value(Publish(addr, "qlt_"+addr[10:11]))(t))
	}
	require.NoError(t, files[0].lock.Close()) // killed
	all = must.Value(Running())(t)
	require.Equal(t, []string{"127.0.0.1:7481", "127.0.0.1:8481"}, all)
	for _, f := range files[1:] {
		require.NoError(t, f.Remove())
	}
}
