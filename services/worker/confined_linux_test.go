package worker_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/confine"
	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/sandboxes"
	"quartet/services/worker"
)

// A command that ends because its sandbox does says why.
func TestT10_TheEndOfASandboxIsExplained(t *testing.T) {
	r := newRig(t)
	hidden := filepath.Join(r.root, "key")
	r.worker(func(c *worker.Config) {
		c.Confinement = &sandboxes.Config{
			Helper:  []string{"/proc/self/exe", helperArgument},
			Network: confine.NetworkAll, Level: confine.LevelLandlock, Hidden: []string{hidden},
		}
	})
	id := r.background(&taskv1.CommandSpec{Cmd: "echo up; exec sleep 1000"})
	r.awaitOutput(id, "up")
	require.NoError(t, os.WriteFile(hidden, []byte("SECRET"), 0o600))
	end := r.await(id)
	require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_SIGNALLED, end.GetEndReason())
	require.Equal(t, "ended by SIGKILL; the sandbox ended: "+hidden+" must not exist for commands, and namespaces "+
		"only can hide it", end.GetEndMessage())
	require.Contains(t, r.sh("true").GetTask().GetEndMessage(), "confinement_unavailable")
}

// A process that tries to take its mark away is found and ended with its command all the same (SPEC T6.1).
func TestT6_NoConfinedProcessTakesItsMarkAway(t *testing.T) {
	for _, level := range []confine.Level{confine.LevelNamespaces, confine.LevelLandlock} {
		r := newRig(t)
		r.worker(func(c *worker.Config) {
			c.Confinement = &sandboxes.Config{
				Helper:  []string{"/proc/self/exe", helperArgument},
				Network: confine.NetworkNone, Level: level,
			}
		})
		name := strconv.Itoa(1_000_000 + os.Getpid())
		escape := "prlimit --rttime=1000000 setsid sleep " + name + " & " +
			"(prlimit --rttime=unlimited --pid $$; prlimit --rttime=1000000:1000000 --pid $(sh -c 'echo $PPID'); " +
			"setsid env -i sleep " + name + " &); wait $!; "
		resp := r.sh(escape + "setsid sleep " + name + " >/dev/null 2>&1 & echo begun")
		require.Equal(t, completed, resp.GetTask().GetState())
		require.Contains(t, resp.GetOutput(), "begun")
		require.Contains(t, resp.GetOutput(), "Operation not permitted")
		require.Empty(t, processesWith(t, name), "%s", level)
	}
}

// processesWith returns the processes with an argument.
func processesWith(t *testing.T, argument string) (pids []string) {
	files := must.Value(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && slices.Contains(strings.Split(string(line), "\x00"), argument) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// Workers whose roots, and whose home, are one directory do not end the commands of each other, where only Landlock
// confines.
func TestT10_WorkersShareARootThatIsTheirHome(t *testing.T) {
	r := newRig(t)
	t.Setenv("HOME", r.root)
	t.Setenv("XDG_STATE_HOME", "")
	confined := func(id string) {
		r.worker(func(c *worker.Config) {
			c.ID, c.Capacity = id, 1
			c.Confinement = &sandboxes.Config{
				Helper:  []string{"/proc/self/exe", helperArgument},
				Network: confine.NetworkAll, Level: confine.LevelLandlock,
			}
		})
	}
	confined("first")
	id := r.background(&taskv1.CommandSpec{Cmd: "echo up; exec sleep 1000"})
	r.awaitOutput(id, "up")
	confined("second")
	for range 3 { // longer than hidden paths are looked for
		require.Equal(t, completed, r.sh("sleep 0.1").GetTask().GetState())
	}
	require.Equal(t, running, r.get(id).GetState())
	require.NoDirExists(t, filepath.Join(r.root, ".local"))
}
