package guides

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"quartet/pkg/must"
	"quartet/tests/proc"
)

// inNetwork is set in the process that becomes a page's shell; marker in all processes of a page.
const (
	inNetwork = "QUARTET_TEST_GUIDES_SHELL"
	marker    = "TEST_GUIDES_PAGE"
)

var built struct{ dir, binary string }

// TestMain is also the process that becomes the shell of a page: in a network of its own, it enables loopback first.
func TestMain(m *testing.M) {
	if os.Getenv(inNetwork) != "" {
		bash, err := exec.LookPath("bash")
		if err = errors.Join(err, loopback(), os.Unsetenv(inNetwork)); err == nil {
			err = unix.Exec(bash, []string{"bash", "--noprofile", "--norc"}, os.Environ())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(built.dir)
	os.Exit(code)
}

func loopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// shell is the reader of one page.
type shell struct {
	home, dir, out string
	in             io.Writer
	said           *bufio.Reader // what the shell reports of its blocks
	stderr         bytes.Buffer
	blocks         int
}

// newShell starts a shell whose working directory is a copy of this repository made of links, with bin/quartet, and in
// whose PATH quartet is too. All of its processes end with the test.
func newShell(ctx context.Context, t *testing.T, binary string) *shell {
	base := t.TempDir()
	s := &shell{home: filepath.Join(base, "home"), out: filepath.Join(base, "out")}
	s.dir = filepath.Join(s.home, "quartet")
	local := filepath.Join(s.home, ".local", "bin")
	for _, dir := range []string{s.dir, s.out, local, filepath.Join(s.dir, "bin")} {
		require.NoError(t, os.MkdirAll(dir, 0o700))
	}
	repository := must.Value(filepath.Abs(root))(t)
	entries := must.Value(os.ReadDir(repository))(t)
	for _, e := range entries {
		if !slices.Contains([]string{"bin", "data", "dist", "installation", ".git", ".env"}, e.Name()) {
			require.NoError(t, os.Symlink(filepath.Join(repository, e.Name()), filepath.Join(s.dir, e.Name())))
		}
	}
	require.NoError(t, os.Symlink(filepath.Join(repository, "examples", "typescript-runner", "node_modules"),
		filepath.Join(s.dir, "node_modules")))
	require.NoError(t, os.Link(binary, filepath.Join(s.dir, "bin", "quartet")))
	require.NoError(t, os.Link(binary, filepath.Join(local, "quartet")))

	reports, report, err := os.Pipe()
	require.NoError(t, err)
	name := base
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Dir, cmd.ExtraFiles, cmd.Stderr = s.dir, []*os.File{report}, &s.stderr
	cmd.Env = append(environment(t), inNetwork+"=1", marker+"="+name, "HOME="+s.home, "PATH="+local+":"+
		os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_NET_ADMIN},
	}
	// its end ends the shell, also if this test is killed, and the shell ends what it has started
	s.in = must.Value(cmd.StdinPipe())(t)
	require.NoError(t, cmd.Start())
	require.NoError(t, report.Close())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		end(t, name)
		_ = cmd.Wait() // which waits until nobody has its standard error
		_ = reports.Close()
	})
	s.said = bufio.NewReader(reports)
	// programs in the background have the pipe too
	context.AfterFunc(ctx, func() { _ = reports.SetReadDeadline(time.Unix(1, 0)) })
	s.send("set -eEo pipefail; trap 'printf \"failed %s: %s\\n\" \"$?\" \"${BASH_COMMAND//$'\\''\\n'\\''/ }\" >&3' " +
		"ERR; trap '" + endAll + "' EXIT")
	return s
}

// endAll ends the processes of the page, which know its marker.
const endAll = `echo exit >&3; for p in /proc/[0-9]*; do [ $p != /proc/$$ ] && grep -qsz "^` + marker + `=$` + marker +
	`\$" $p/environ && kill -9 ${p#/proc/} 2>/dev/null; done`

// stopTerminal ends the program in the terminal that was opened last, as ^C does, and waits for it. (A shell that is
// not interactive lets its background programs ignore SIGINT.)
const stopTerminal = `t=${terminals[-1]}; s=$(</proc/$t/task/$t/children); kill $(</proc/${s% }/task/${s% }/children); wait $t || true; unset 'terminals[-1]'
`

// environment is that of somebody who begins: nothing of Quartet is set. Go finds what it has compiled before.
func environment(t *testing.T) []string {
	raw := must.Value(exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOROOT").Output())(t)
	paths := strings.Fields(string(raw))
	return []string{
		"LANG=C.UTF-8", "TERM=dumb", "TMPDIR=" + os.TempDir(), "GOCACHE=" + paths[0], "GOMODCACHE=" + paths[1],
		"GOROOT=" + paths[2],
		"GOPROXY=off", "GOTOOLCHAIN=local", "GOFLAGS=" + os.Getenv("GOFLAGS"), "CGO_ENABLED=0",
	}
}

// end ends the processes of a page that are left: servers in the background, workers.
func end(t *testing.T, name string) {
	want := []byte(marker + "=" + name + "\x00")
	for range 20 { // a process may start another one before it ends
		left := 0
		dirs := must.Value(filepath.Glob("/proc/[0-9]*"))(t)
		for _, dir := range dirs {
			env, err := os.ReadFile(filepath.Join(dir, "environ"))
			if pid, _ := strconv.Atoi(filepath.Base(dir)); err == nil && pid > 1 && bytes.Contains(env, want) {
				left++
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if left == 0 {
			return
		}
	}
}

func (s *shell) send(line string) { _, _ = io.WriteString(s.in, line+"\n") }

// run runs a block and returns what it wrote.
func (s *shell) run(b block) (string, error) {
	s.blocks++
	script := filepath.Join(s.out, fmt.Sprintf("%d.sh", s.blocks))
	out := filepath.Join(s.out, fmt.Sprintf("%d.out", s.blocks))
	if err := os.WriteFile(script, []byte(b.text), 0o600); err != nil {
		return "", err
	}
	source := fmt.Sprintf(". %s </dev/null >%s 2>&1", script, out)
	switch {
	case b.terminal:
		// It is the reader's next step to look whether the server answers.
		s.send(fmt.Sprintf("( trap - ERR EXIT; exec 3>&-; %s ) || echo \"$?\" >%s.ended & terminals+=($!); until "+
			"quartet ready >/dev/null 2>&1; do [ ! -e %s.ended ]; read -rt 0.05 <> <(:) || true; done; echo ok >&3",
			source, out, out))
	case b.exit != "":
		s.send(fmt.Sprintf("code=0; ( trap - ERR EXIT; %s ) || code=$?; [ $code = %s ]; echo ok >&3", source, b.exit))
	default:
		s.send(source + "; echo ok >&3")
	}
	line, err := s.said.ReadString('\n')
	raw, _ := os.ReadFile(out)
	if err != nil || line != "ok\n" {
		return string(raw), fmt.Errorf("%s%w\n%s", line, errors.Join(err, errors.New("the block failed")),
			s.stderr.String())
	}
	return string(raw), nil
}

// shows waits for a line in the output of the last block, which a program may still be writing.
func (s *shell) shows(t *testing.T, b block, line string) {
	path, want := filepath.Join(s.out, fmt.Sprintf("%d.out", s.blocks)), loosely(line)
	read := func() string {
		return string(must.Value(os.ReadFile(path))(t))
	}
	if b.terminal {
		for deadline := time.NewTimer(30 * time.Second); !want.MatchString(read()); {
			select {
			case <-deadline.C:
				require.Regexp(t, want, read(), b.text)
			case <-time.After(20 * time.Millisecond):
			}
		}
		return
	}
	require.Regexp(t, want, read(), b.text)
}

// ended returns the outputs of programs in terminals that failed by themselves.
func (s *shell) ended() (out []string) {
	paths, _ := filepath.Glob(filepath.Join(s.out, "*.ended"))
	for _, p := range paths {
		code, _ := os.ReadFile(p)
		raw, _ := os.ReadFile(strings.TrimSuffix(p, ".ended"))
		// 137 and 143: the page has killed the program, or stopped it.
		if c := strings.TrimSpace(string(code)); c != "137" && c != "143" {
			out = append(out, "code "+c+"\n"+string(raw))
		}
	}
	return out
}

// loosely finds a line: … is anything within it, blanks are as many as there are.
func loosely(line string) *regexp.Regexp {
	parts := strings.Split(line, "…")
	for i, p := range parts {
		words := strings.Fields(p)
		for j := range words {
			words[j] = regexp.QuoteMeta(words[j])
		}
		parts[i] = strings.Join(words, `\s+`)
	}
	return regexp.MustCompile(strings.Join(parts, `[^\n]*`))
}

func quartet(t *testing.T) string {
	proc.Long(t)
	if built.binary == "" {
		var err error
		built.dir, err = os.MkdirTemp("", "quartet-guides-") //nolint:usetesting // all tests use it
		require.NoError(t, err)
		built.binary = must.Value(proc.Build(built.dir, "quartet/cmd/quartet", "quartet"))(t)
	}
	return built.binary
}
