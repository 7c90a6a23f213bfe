package worker_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task"
	"quartet/services/worker"
)

// T7: memory and processes of all that a command starts count, also of what has
// left its group; below and at a limit nothing happens, above it all of it is
// ended and the figure is said.
func TestT7_Limits(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	const hog = "head -c 30000000 /dev/zero | tail | { sleep 1; cat >/dev/null; }" // 30 MB for a second
	for name, c := range map[string]struct {
		line   string
		limits *taskv1.CommandLimits
		reason taskv1.TaskEndReason
		says   string
	}{
		"memory below": {
			hog, &taskv1.CommandLimits{MemoryBytes: 200 << 20},
			taskv1.TaskEndReason_TASK_END_REASON_EXITED, "",
		},
		"memory above": {
			hog + "; sleep 300", &taskv1.CommandLimits{MemoryBytes: 20 << 20},
			taskv1.TaskEndReason_TASK_END_REASON_MEMORY_LIMIT_EXCEEDED, "the limit is 20.0 MiB",
		},
		"memory elsewhere": {
			"setsid env -i sh -c 'head -c 30000000 /dev/zero | tail | sleep 300' & wait; " +
				"sleep 300", &taskv1.CommandLimits{MemoryBytes: 20 << 20},
			taskv1.TaskEndReason_TASK_END_REASON_MEMORY_LIMIT_EXCEEDED, "the limit is 20.0 MiB",
		},
		"processes at": {
			"sleep 1 & sleep 1 & wait", &taskv1.CommandLimits{Processes: 3},
			taskv1.TaskEndReason_TASK_END_REASON_EXITED, "",
		},
		"processes above": {
			"sleep 300 & sleep 300 & wait", &taskv1.CommandLimits{Processes: 2},
			taskv1.TaskEndReason_TASK_END_REASON_PROCESS_LIMIT_EXCEEDED, "it had 3 processes; the limit is 2",
		},
		"processes in own sessions": {
			"for i in 1 2 3; do setsid env -i sleep 300 & done; wait; sleep 300",
			&taskv1.CommandLimits{Processes: 3}, taskv1.TaskEndReason_TASK_END_REASON_PROCESS_LIMIT_EXCEEDED,
			"processes; the limit is 3",
		},
		"output at": {
			"printf 1234; printf 5678 >&2", &taskv1.CommandLimits{OutputBytes: 8},
			taskv1.TaskEndReason_TASK_END_REASON_EXITED, "",
		},
		"output above": {
			"printf 12345678; printf 9; sleep 300", &taskv1.CommandLimits{OutputBytes: 8},
			taskv1.TaskEndReason_TASK_END_REASON_OUTPUT_LIMIT_EXCEEDED, "more than its limit of 8 bytes",
		},
		"output without end": {
			"yes", &taskv1.CommandLimits{OutputBytes: 100_000},
			taskv1.TaskEndReason_TASK_END_REASON_OUTPUT_LIMIT_EXCEEDED, "100000",
		},
		"on a terminal": {
			"yes", &taskv1.CommandLimits{OutputBytes: 1000},
			taskv1.TaskEndReason_TASK_END_REASON_OUTPUT_LIMIT_EXCEEDED, "1000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp := r.exec(&taskv1.ExecCommandRequest{
				Command:   &taskv1.CommandSpec{Cmd: c.line, Limits: c.limits, Tty: name == "on a terminal"},
				YieldTime: durationpb.New(40 * time.Second),
			})
			got := resp.GetTask()
			require.Equal(t, c.reason, got.GetEndReason(), "%v", got)
			require.Contains(t, got.GetEndMessage(), c.says)
			if c.reason == taskv1.TaskEndReason_TASK_END_REASON_EXITED {
				require.Equal(t, completed, got.GetState())
			} else {
				require.Equal(t, failed, got.GetState())
			}
			if most := c.limits.GetOutputBytes(); most > 0 {
				require.Equal(t, most, got.GetOutputBytes())
			}
			require.Zero(t, alive(t, "QUARTET_TASK_ID="+got.GetTaskId()))
		})
	}
}

// T7: a worker's own bounds hold for every command, whatever it asks for.
func TestT7_TheWorkersOwnLimits(t *testing.T) {
	r := newRig(t)
	r.worker(func(c *worker.Config) { c.MaxProcesses, c.MaxMemory = 2, 20<<20 })
	for line, says := range map[string]string{
		"sleep 300 & sleep 300 & wait":                "the limit is 2",
		"exec perl -e '$x = \"x\" x 30e6; sleep 300'": "the limit is 20.0 MiB",
	} {
		for _, asked := range []*taskv1.CommandLimits{nil, {Processes: 100, MemoryBytes: 1 << 30}} {
			resp := r.exec(&taskv1.ExecCommandRequest{
				Command: &taskv1.CommandSpec{Cmd: line, Limits: asked}, YieldTime: durationpb.New(40 * time.Second),
			})
			require.Equal(t, failed, resp.GetTask().GetState())
			require.Contains(t, resp.GetTask().GetEndMessage(), says)
		}
	}
	resp := r.exec(&taskv1.ExecCommandRequest{
		Command:   &taskv1.CommandSpec{Cmd: "sleep 300 & wait", Limits: &taskv1.CommandLimits{Processes: 1}},
		YieldTime: durationpb.New(40 * time.Second),
	})
	require.Contains(t, resp.GetTask().GetEndMessage(), "the limit is 1", "a command may ask for less")
}

// T6: what leaves its group, its session and its environment ends with its
// command, however that ends.
func TestT6_NothingOutlivesItsCommand(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	// The process's only trace is its argument, which no other process has.
	count := func(id string) int { return commands(t, "sleep "+id) }
	for n, end := range []string{"by itself", "stopped", "killed", "timeout", "failed"} {
		t.Run(end, func(t *testing.T) {
			id := fmt.Sprintf("3%d.%d", n, os.Getpid())
			line := "setsid env -i sleep " + id + " & (setsid sleep " + id + " &); sleep 0.3; echo up; "
			spec := &taskv1.CommandSpec{Cmd: line + map[string]string{
				"by itself": "exit 0", "failed": "exit 3", "stopped": "sleep 300",
				"killed": "trap '' TERM; while :; do sleep 1; done", "timeout": "sleep 300",
			}[end]}
			if end == "timeout" {
				spec.Timeout = durationpb.New(time.Second)
			}
			task := r.background(spec)
			r.awaitOutput(task, "up")
			stop := func() {
				_, err := r.client().StopTask(r.ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: task})
				require.NoError(t, err)
			}
			if end == "stopped" || end == "killed" {
				r.eventually(func() bool { return count(id) == 2 })
				stop()
			}
			if end == "killed" {
				stop()
			}
			r.await(task)
			require.Zero(t, count(id))
		})
	}
}

// T4: a command that may be run twice is begun anew by the next life of its worker,
// or by another worker, and its output goes on where the first one's ended.
func TestT4_RestartOnWorkerLoss(t *testing.T) {
	r := newRig(t)
	r.cfg = task.Config{LeaseTerm: time.Second}
	r.down()
	r.up()
	first := r.worker(func(c *worker.Config) { c.ID, c.Labels = "w1", map[string]string{"disk": "big"} })
	spec := &taskv1.CommandSpec{
		Cmd:           "[ -e again ]; first=$?; touch again; echo run of $PWD; [ $first = 0 ] || exec sleep 300",
		RestartPolicy: taskv1.RestartPolicy_RESTART_POLICY_ON_WORKER_LOSS,
		WorkerLabels:  map[string]string{"disk": "big"},
	}
	id := r.background(spec)
	r.awaitOutput(id, "run of")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, first.Stop(ctx))
	r.eventually(func() bool { return r.get(id).GetRestarts() == 1 })
	r.eventually(func() bool { return r.get(id).GetQueueReason() == "no_worker" })
	require.Equal(t, taskv1.TaskState_TASK_STATE_RUNNING, r.get(id).GetState())
	r.worker(func(c *worker.Config) { c.ID, c.StateDir = "w2", t.TempDir() })
	r.eventually(func() bool { return r.get(id).GetQueueReason() == "no_matching_worker" })
	r.worker(func(c *worker.Config) {
		c.ID, c.StateDir, c.Labels = "w3", t.TempDir(), map[string]string{"disk": "big", "os": "linux"}
	})
	end := r.await(id)
	require.Equal(t, completed, end.GetState())
	require.Equal(t, "w3", end.GetWorkerId())
	require.Empty(t, end.GetQueueReason())
	require.Equal(t, "run of "+r.root+"\nrun of "+r.root+"\n", r.awaitOutput(id, "\nrun of"))
	require.Equal(t, []string{"task_queued", "task_started", "task_restarting", "task_started", "task_completed"},
		r.events(id))
}
