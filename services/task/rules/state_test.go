package rules

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// Apply is the last line of defence: whatever would move a task backwards or
// past its end is refused, and the partition loads again.
func TestT2_ApplyRefusesWhatCannotBe(t *testing.T) {
	w := newWorld()
	task, err := w.exec(t, &taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{Cmd: "x", AcceptsInput: true}})
	require.NoError(t, err)
	id := task.GetTaskId()
	queued := w.task(id)
	as := func(from *taskv1.Task, state taskv1.TaskState, change func(*taskv1.Task)) *taskv1.Task {
		c := proto.CloneOf(from)
		c.State = state
		c.Revision++
		if change != nil {
			change(c)
		}
		return c
	}
	refuse := func(ns string, payload proto.Message) {
		t.Helper()
		before := dump(w.state)
		require.Error(t, w.state.Apply(&journal.Event{Namespace: ns, Payload: payload}))
		require.Equal(t, before, dump(w.state))
	}
	runningState, cancelling := taskv1.TaskState_TASK_STATE_RUNNING, taskv1.TaskState_TASK_STATE_CANCELLING
	refuse("acme", &taskv1.TaskQueued{Task: queued})
	refuse("acme", &taskv1.TaskQueued{Task: &taskv1.Task{}})
	refuse("acme", &taskv1.Task{})
	refuse("beta", &taskv1.TaskStarted{Task: as(queued, runningState, nil)})
	refuse("acme", &taskv1.TaskStarted{Task: as(queued, runningState, func(c *taskv1.Task) { c.AgentId = "other" })})
	refuse("acme", &taskv1.TaskStarted{Task: as(queued, runningState, func(c *taskv1.Task) { c.Revision++ })})
	refuse("acme", &taskv1.TaskStarted{Task: as(queued, runningState, func(c *taskv1.Task) { c.TaskId = "tsk_none" })})
	refuse("acme", &taskv1.TaskInputAccepted{TaskId: id, InputSeq: 1})
	require.Equal(t, 1, w.lease(t, one(1)))
	running := w.task(id)
	refuse("acme", &taskv1.TaskStarted{Task: as(running, runningState, nil)})
	refuse("acme", &taskv1.TaskStarted{Task: as(running, taskv1.TaskState_TASK_STATE_QUEUED, nil)})
	refuse("acme", &taskv1.TaskInputAccepted{TaskId: id, InputSeq: 2})
	require.NoError(t, w.stop(t, "keeper", id))
	refuse("acme", &taskv1.TaskStarted{Task: as(w.task(id), runningState, nil)})
	require.True(t, w.end(t, End{TaskID: id, Generation: 1, Reason: ReasonExited, ExitCode: code(0)}))
	refuse("acme", &taskv1.TaskCancelled{Task: as(w.task(id), taskv1.TaskState_TASK_STATE_CANCELLED, nil)})
	refuse("acme", &taskv1.TaskCancelling{Task: as(w.task(id), cancelling, nil)})
	require.True(t, model.WithDerived(w.task(id)).GetTerminal())
	require.False(t, w.task(id).GetTerminal(), "derived fields are not in state (X6)")
}
