package lease

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process that was killed is known to be over; one that is only frozen is not,
// nor one of whom nothing can be known.
func TestR6_AProcessThatIsOverIsKnown(t *testing.T) {
	own := process()
	require.NotEmpty(t, own)
	require.False(t, over(own, own))
	parts := strings.Split(own, "/")
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	require.NoError(t, cmd.Start())
	began, ok := started(cmd.Process.Pid)
	require.True(t, ok)
	child := strings.Join([]string{parts[0], parts[1], strconv.Itoa(cmd.Process.Pid), began}, "/")
	require.False(t, over(child, own))
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	require.False(t, over(child, own), "it may wake up")
	require.True(t, over(strings.Join([]string{parts[0], parts[1], strconv.Itoa(cmd.Process.Pid), began + "0"}, "/"),
		own), "the number was given to another")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.True(t, over(child, own))
	require.False(t, over(strings.Replace(child, parts[1], "pid:[1]", 1), own), "of another container")
	for _, odd := range []string{"", "x", "a/b/c/d", parts[0] + "/" + parts[1] + "/x/1"} {
		require.False(t, over(odd, own), odd)
	}
}
