package proctree

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"quartet/pkg/must"
)

// The test binary is its own guard, and a host that is killed.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "guard":
		if err := Guard(context.Background(), os.Stdin, os.Args[2]); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case len(os.Args) == 4 && os.Args[1] == "host":
		os.Exit(runHost(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

// runHost starts a tree that leaves its group, its session and its environment
// behind, and waits for its own end.
func runHost(owner, pids string) int {
	h, err := Open(context.Background(), Config{Owner: owner, Boot: "1", Guard: []string{"/proc/self/exe", "guard"}})
	if err != nil {
		return 1
	}
	if _, err := h.Start(exec.Command("sh", "-c", escaping(pids)), nil); err != nil {
		return 2
	}
	<-time.After(time.Minute)
	return 0
}

// escaping returns a shell line that starts processes in every way that is known to escape.
func escaping(pids string) string {
	line := "echo $$ >> " + pids + "; exec sleep 300"
	return "sh -c '" + line + "' & " +
		"setsid sh -c '" + line + "' & " +
		"setsid env -i sh -c '" + line + "' & " +
		"(setsid env -i sh -c 'sh -c \"echo \\$\\$ >> " + pids + "; exec sleep 300\" & ' &) ; wait; sleep 300"
}

const escapingProcesses = 4

func readPIDs(t *testing.T, path string) (out []int) {
	raw, _ := os.ReadFile(path)
	for _, f := range strings.Fields(string(raw)) {
		out = append(out, must.Value(strconv.Atoi(f))(t))
	}
	return out
}

func lives(pid int) bool {
	_, alive := memoryOf(pid, make([]byte, 4<<10))
	return alive
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, time.Minute, 5*time.Millisecond)
}

func open(t *testing.T, owner, boot string) *Host {
	h := must.Value(Open(t.Context(), Config{Owner: owner, Boot: boot}))(t)
	t.Cleanup(func() { require.NoError(t, h.Close(context.Background())) })
	return h
}

// start runs a shell line as a tree, to be reaped when it ends.
func start(t *testing.T, h *Host, line string) (Mark, *exec.Cmd, chan error) {
	cmd := exec.Command("sh", "-c", line)
	m := must.Value(h.Start(cmd, nil))(t)
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	return m, cmd, gone
}

// T6: whatever it did to get away, all of a tree is ended, and nothing else.
func TestT6_NoProcessEscapes(t *testing.T) {
	h := open(t, "o@"+t.TempDir(), "1")
	other, kept, keptGone := start(t, h, "sleep 300")
	for range 3 {
		pids := filepath.Join(t.TempDir(), "pids")
		m, _, gone := start(t, h, escaping(pids))
		require.NotEqual(t, other, m)
		eventually(t, func() bool { return len(readPIDs(t, pids)) == escapingProcesses })
		n := must.Value(h.End(t.Context(), m, 0))(t)
		require.GreaterOrEqual(t, n, escapingProcesses)
		require.ErrorContains(t, <-gone, "killed")
		for _, pid := range readPIDs(t, pids) {
			require.False(t, lives(pid), pid)
		}
		n = must.Value(h.End(t.Context(), m, 0))(t)
		require.Zero(t, n)
	}
	require.True(t, lives(kept.Process.Pid))
	must.Value(h.End(t.Context(), other, 0))(t)
	<-keptGone
}

// With a leader only what is younger is looked at, and that is all there can be.
func TestT6_EndAfterTheLeader(t *testing.T) {
	h := open(t, "o@"+t.TempDir(), "1")
	pids := filepath.Join(t.TempDir(), "pids")
	cmd := exec.Command("sh", "-c", "setsid sh -c 'echo $$ >> "+pids+"; exec sleep 300' & exit 0")
	m := must.Value(h.Start(cmd, nil))(t)
	eventually(t, func() bool { return len(readPIDs(t, pids)) == 1 })
	require.NoError(t, unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	require.Equal(t, 1, must.Value(h.End(t.Context(), m, cmd.Process.Pid))(t))
	require.False(t, lives(readPIDs(t, pids)[0]))
	require.NoError(t, cmd.Wait())
}

// A later boot of an owner ends what an earlier one left, and leaves other owners alone.
func TestT6_ALaterBootEndsWhatAnEarlierOneLeft(t *testing.T) {
	owner := "o@" + t.TempDir()
	first := open(t, owner, "1")
	stranger := open(t, "p@"+t.TempDir(), "1")
	_, _, gone := start(t, first, "sleep 300")
	_, foreign, _ := start(t, stranger, "sleep 300")
	open(t, owner, "2")
	require.ErrorContains(t, <-gone, "killed")
	require.True(t, lives(foreign.Process.Pid))
}

func TestT6_CloseEndsWhatIsLeft(t *testing.T) {
	h := open(t, "o@"+t.TempDir(), "1")
	_, _, gone := start(t, h, "sleep 300")
	require.NoError(t, h.Close(t.Context()))
	require.NoError(t, h.Close(t.Context()))
	require.Error(t, <-gone)
}

// A process that is started while trees are started belongs to none of them.
func TestT6_OtherProcessesAreUnmarked(t *testing.T) {
	buf := make([]byte, 4<<10)
	own := markOf(os.Getpid(), buf) // a command of a worker that runs these tests has one
	h := open(t, "o@"+t.TempDir(), "1")
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			cmd := exec.Command("true")
			m, err := h.Start(cmd, nil)
			if err == nil {
				err = cmd.Wait()
			}
			if _, left := h.End(context.WithoutCancel(t.Context()), m, 0); err != nil || left != nil {
				done <- errors.Join(err, left)
				return
			}
		}
	}()
	for range 300 {
		cmd := exec.Command("sleep", "300")
		require.NoError(t, StartUnmarked(cmd))
		mark := markOf(cmd.Process.Pid, buf)
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
		require.Equal(t, own, mark)
	}
	close(stop)
	require.NoError(t, <-done)
}

// T6: a host that is killed leaves nothing, with nobody to start it again.
func TestT6_TheGuardEndsWhatAKilledHostLeft(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	host := exec.Command("/proc/self/exe", "host", "o@"+t.TempDir(), pids)
	host.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, StartUnmarked(host))
	eventually(t, func() bool { return len(readPIDs(t, pids)) == escapingProcesses })
	for _, pid := range readPIDs(t, pids) {
		require.True(t, lives(pid))
	}
	require.NoError(t, host.Process.Kill())
	require.Error(t, host.Wait())
	eventually(t, func() bool {
		for _, pid := range readPIDs(t, pids) {
			if lives(pid) {
				return false
			}
		}
		return true
	})
}

// A guard that is killed is replaced; it ends when its host is closed.
func TestT6_TheGuardIsReplaced(t *testing.T) {
	h := must.Value(Open(t.Context(), Config{
		Owner: "o@" + t.TempDir(), Boot: "1", Guard: []string{"/proc/self/exe", "guard"},
	}))(t)
	guards := func() (out []int) {
		entries := must.Value(os.ReadDir("/proc"))(t)
		for _, e := range entries {
			line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			if strings.HasSuffix(string(line), "guard\x00"+strconv.FormatUint(uint64(h.first), 10)+"\x00") {
				out = append(out, must.Value(strconv.Atoi(e.Name()))(t))
			}
		}
		return out
	}
	var before []int
	eventually(t, func() bool { before = guards(); return len(before) == 1 })
	require.NoError(t, syscall.Kill(before[0], syscall.SIGKILL))
	eventually(t, func() bool { now := guards(); return len(now) == 1 && now[0] != before[0] })
	require.NoError(t, h.Close(t.Context()))
	require.Empty(t, guards())
	for _, bad := range []string{"", "x", "7", "99999999999999999999"} {
		require.Error(t, Guard(t.Context(), strings.NewReader(""), bad))
	}
}

// T7: what a tree takes, with what has left its group.
func TestT7_Use(t *testing.T) {
	h := open(t, "o@"+t.TempDir(), "1")
	m, _, _ := start(t, h, "setsid env -i sleep 300 & head -c 20000000 /dev/zero | tail | sleep 300")
	eventually(t, func() bool {
		u := must.Value(h.Use())(t)[m]
		return u.Processes == 4 && u.Memory > 20_000_000 && u.Memory < 40_000_000
	})
	must.Value(h.End(t.Context(), m, 0))(t)
	require.NotContains(t, must.Value(h.Use())(t), m)
}

func TestMarksOfDifferentOwnersBootsAndTrees(t *testing.T) {
	seen := map[Mark]bool{}
	for _, owner := range []string{"a", "b", "w@/x", "w@/y"} {
		for _, boot := range []string{"1", "2", "boot_01h455vb4pex5vsknk084sn02q"} {
			m := firstMark(owner, boot)
			require.False(t, seen[m])
			seen[m] = true
			require.Equal(t, m, (m + treeMask).boot())
			require.Equal(t, firstMark(owner, "other").owner(), m.owner())
			require.Less(t, uint64(m), uint64(2*leading))
			require.GreaterOrEqual(t, uint64(m), uint64(leading))
		}
	}
	require.Error(t, must.Err(Open(t.Context(), Config{})))
	h := open(t, "o@"+t.TempDir(), "1")
	first, again := h.reserve(), h.reserve()
	require.NotEqual(t, first, again)
	h.release(again)
	h.last = treeMask // wrap around
	require.Equal(t, h.first, h.reserve())
	require.Equal(t, again, h.reserve(), "the first one is still taken")
	require.NotEqual(t, h.first.owner(), markOf(os.Getpid(), make([]byte, 4<<10)).owner(),
		"this process may be of a tree, but of none of these")
}
