package confine_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"quartet/pkg/confine"
	"quartet/pkg/must"
)

// helperArgument makes the test binary a helper.
const helperArgument = "be-a-helper"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == helperArgument {
		if err := confine.Main(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == attackArgument {
		fmt.Println(attacks[os.Args[2]](os.Args[3:]))
		os.Exit(0)
	}
	if err := protectOrdinary(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// sandbox is an open sandbox with a workspace.
type sandbox struct {
	*confine.Sandbox
	t         *testing.T
	workspace string
}

// open opens a sandbox. change may be nil.
func open(t *testing.T, change func(*confine.Policy)) *sandbox {
	dir := must.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	p := confine.Policy{
		Dir: filepath.Join(dir, "sandbox"), Writable: []string{filepath.Join(dir, "workspace")},
		Network: confine.NetworkNone,
	}
	require.NoError(t, os.Mkdir(p.Writable[0], 0o700))
	if change != nil {
		change(&p)
	}
	s := must.Value(confine.Open(p, []string{"/proc/self/exe", helperArgument}, nil))(t)
	t.Cleanup(func() { _ = s.Close() })
	return &sandbox{s, t, p.Writable[0]}
}

// start starts a shell command and returns it with its output, stdout and stderr in one.
func (s *sandbox) start(command string) (*confine.Process, func() string) {
	r, w, err := os.Pipe()
	require.NoError(s.t, err)
	null := must.Value(os.Open(os.DevNull))(s.t)
	p := must.Value(s.Start(confine.Spec{
		Argv: []string{"sh", "-c", command}, Dir: s.workspace, Files: [3]*os.File{null, w, w},
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + confine.Home(s.Dir()), "TMPDIR=" + confine.Temp(s.Dir())},
	}))(s.t)
	require.NoError(s.t, w.Close())
	require.NoError(s.t, null.Close())
	return p, func() string {
		out := must.Value(io.ReadAll(r))(s.t)
		require.NoError(s.t, r.Close())
		return strings.TrimSpace(string(out))
	}
}

// run runs a shell command to its end and returns its output and status.
func (s *sandbox) run(command string) (string, syscall.WaitStatus) {
	p, output := s.start(command)
	out := output()
	return out, p.Wait()
}

// levels runs a test at each level.
func levels(t *testing.T, f func(t *testing.T, level confine.Level)) {
	for _, level := range []confine.Level{confine.LevelNamespaces, confine.LevelLandlock} {
		t.Run(string(level), func(t *testing.T) { f(t, level) })
	}
}

func TestCommandsWorkInTheirSandbox(t *testing.T) {
	levels(t, func(t *testing.T, level confine.Level) {
		s := open(t, func(p *confine.Policy) { p.Level = level })
		require.Equal(t, level, s.Level())
		for _, c := range []struct{ command, want string }{
			{"echo hello > a && cat a && pwd", "hello\n" + s.workspace},
			{"cd \"$HOME\" && echo x > f && cat f", "x"},
			{"cd \"$TMPDIR\" && mktemp >/dev/null && echo made", "made"},
			{"echo a | tr a b; echo to-null >/dev/null; head -c 3 /dev/zero | wc -c", "b\n3"},
			{"cat /proc/self/status | grep -c CapEff", "1"},
			{"grep CapEff /proc/self/status | tr -d '[:space:]'", "CapEff:0000000000000000"},
			{"grep NoNewPrivs /proc/self/status | tr -d '[:space:]'", "NoNewPrivs:1"},
			{"git init -q r && cd r && git -c user.name=a -c user.email=b@c commit -q --allow-empty -m x && git log " +
				"--oneline | wc -l", "1"},
		} {
			out, status := s.run(c.command)
			require.Equal(t, c.want, out, c.command)
			require.True(t, status.Exited() && status.ExitStatus() == 0, c.command)
		}
		_, status := s.run("exit 3")
		require.Equal(t, 3, status.ExitStatus())
		_, status = s.run("kill -KILL $$")
		require.True(t, status.Signaled())
		require.Equal(t, syscall.SIGKILL, status.Signal())
	})
}

func TestAProcessHasANumberOfTheHost(t *testing.T) {
	levels(t, func(t *testing.T, level confine.Level) {
		s := open(t, func(p *confine.Policy) { p.Level = level })
		p, output := s.start("trap 'echo ended; exit 7' TERM; echo ready > ready; sleep 100 & wait")
		require.Eventually(t, func() bool { _, err := os.Stat(s.workspace + "/ready"); return err == nil }, waitFor,
			pause)
		require.NoError(t, unix.Kill(-p.Pid, unix.SIGTERM))
		p.AwaitExit()
		require.NoError(t, unix.Kill(-p.Pid, unix.SIGKILL), "the group exists until it is reaped")
		require.Equal(t, "ended", output())
		require.Equal(t, 7, p.Wait().ExitStatus())
	})
}

func TestCloseKillsWhatIsLeft(t *testing.T) {
	levels(t, func(t *testing.T, level confine.Level) {
		s := open(t, func(p *confine.Policy) { p.Level = level })
		p, _ := s.start("sleep 1000")
		require.NoError(t, s.Close())
		require.Eventually(t, func() bool { return unix.Kill(p.Pid, 0) != nil || isZombie(p.Pid) }, waitFor, pause)
		require.Equal(t, syscall.SIGKILL, p.Wait().Signal())
	})
}

func TestAMissingProgramIsAnError(t *testing.T) {
	s := open(t, nil)
	null := must.Value(os.OpenFile(os.DevNull, os.O_RDWR, 0))(t)
	defer func() { _ = null.Close() }()
	_, err := s.Start(confine.Spec{Argv: []string{"no-such-program"}, Dir: "/", Files: [3]*os.File{null, null, null}})
	require.ErrorContains(t, err, "executable file not found")
	_, err = s.Start(confine.Spec{Argv: []string{"/no/such"}, Dir: "/", Files: [3]*os.File{null, null, null}})
	require.ErrorContains(t, err, "no such file")
}

func TestOrphansAreReaped(t *testing.T) {
	s := open(t, func(p *confine.Policy) { p.Level = confine.LevelNamespaces })
	out, _ := s.run("for i in 1 2 3 4 5; do (sh -c 'sleep 0.05 &') ; done; sleep 1; ls -d /proc/[0-9]* | wc -l; cat " +
		"/proc/[0-9]*/stat | grep -c ' Z '")
	require.True(t, strings.HasSuffix(out, "\n0"), out)
}

func isZombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z ")
}

const (
	waitFor = time.Minute
	pause   = 5 * time.Millisecond
)

// What is hidden inside of a writable directory cannot be moved, with the directories that lead to it, to where
// the next sandbox would not hide it. The rest of these directories is writable (SPEC T10).
func TestT10_ParentsOfWhatIsHiddenCannotBeMoved(t *testing.T) {
	var hidden []string
	change := func(p *confine.Policy) {
		p.Level = confine.LevelNamespaces
		root := p.Writable[0]
		hidden = []string{
			filepath.Join(root, "a", "b", "hidden"), filepath.Join(root, "data"),
			filepath.Join(root, "data", "key"),
		}
		p.Hidden = hidden
		require.NoError(t, errors.Join(os.MkdirAll(hidden[0], 0o700), os.MkdirAll(hidden[1], 0o700)))
		require.NoError(t, errors.Join(os.WriteFile(hidden[0]+"/f", []byte("SECRET"), 0o600),
			os.WriteFile(hidden[2], []byte("SECRET"), 0o600)))
	}
	s := open(t, change)
	for _, command := range []string{
		"mv a moved; cat moved/b/hidden/f", "mv a/b moved; cat moved/hidden/f", "mv a/b/hidden moved; cat moved/f",
		"rm -rf a; mkdir -p a/b/hidden; cat a/b/hidden/f", "ln -s a l; mv l/b moved; cat moved/hidden/f",
		"mv data moved; cat moved/key data/key", "cat a/b/hidden/f data/key data/*", "find . -type f -exec cat {} +",
	} {
		out, _ := s.run(command)
		require.NotContains(t, out, "SECRET", command)
		for _, path := range []string{hidden[0] + "/f", hidden[2]} {
			content := must.Value(os.ReadFile(path))(t, "%s: %s", command, out)
			require.Equal(t, "SECRET", string(content), command)
		}
	}
	out, status := s.run(
		"mkdir -p a/b && echo x > a/x && echo y > a/b/y && cat a/x a/b/y && rm a/x && mv a/b/y . && cat y")
	require.Equal(t, "x\ny\ny", out)
	require.Zero(t, status.ExitStatus())
}

// A workspace in /dev/shm is there for commands, and the other files of the host's /dev/shm are not.
func TestAWorkspaceInSharedMemory(t *testing.T) {
	root, err := os.MkdirTemp("/dev/shm", "quartet-test-") //nolint:usetesting // the directory of t.TempDir may be elsewhere
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	workspace := filepath.Join(root, "workspace")
	require.NoError(t, errors.Join(os.Mkdir(workspace, 0o700), os.WriteFile(filepath.Join(root, "other"),
		[]byte("SECRET"), 0o600)))
	s := open(t, func(p *confine.Policy) { p.Writable, p.Level = []string{workspace}, confine.LevelNamespaces })
	out, status := s.run("echo hello > f && cat f; cat ../other; echo x > /dev/shm/own && cat /dev/shm/own")
	require.Equal(t, "hello\ncat: ../other: No such file or directory\nx", out)
	require.Zero(t, status.ExitStatus())
	require.NoFileExists(t, "/dev/shm/own")
}
