package rules

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// TestPagesHaveAllOfATask leads tasks through everything that can happen to them, with a look at the pages
// after each event.
func TestPagesHaveAllOfATask(t *testing.T) {
	var seen journaltest.Seen
	w := newWorld()
	w.paged = journaltest.Checked(model.NewState, 1, &seen)
	exec := func(agent string) string {
		task, err := w.exec(t, &taskv1.ExecCommandRequest{
			AgentId: agent, WorkItemId: "wi_1",
			Command: &taskv1.CommandSpec{
				Cmd: "x", AcceptsInput: true, RestartPolicy: taskv1.RestartPolicy_RESTART_POLICY_ON_WORKER_LOSS,
			},
		})
		require.NoError(t, err)
		return task.GetTaskId()
	}
	first, second, third, last := exec("keeper"), exec("other"), exec("keeper"), exec("third")
	require.NoError(t, w.stop(t, "keeper", third)) // in the queue, behind others
	require.Equal(t, 1, w.lease(t, one(1)))
	require.True(t, w.input(t, first, false, Reach{Connected: true}).GetAcceptedInput())
	require.True(t, w.end(t, End{TaskID: first, Generation: 1, Reason: ReasonWorkerLost}),
		"it is queued again, before the others")
	require.Equal(t, 1, w.lease(t, one(1)))
	require.True(t, w.input(t, first, true, Reach{Connected: true}).GetAcceptedInput())
	require.NoError(t, w.stop(t, "keeper", first))
	require.NoError(t, w.stop(t, "keeper", first), "it is killed")
	shared := model.WorkerSlot{Worker: model.WorkerKey{ID: "shared"}, BootID: "b", Capacity: 1}
	require.Equal(t, 1, w.lease(t, shared), "and the one behind it leaves the queue")
	require.True(t, w.end(t, End{TaskID: second, Generation: 1, Reason: ReasonExited, ExitCode: code(0)}))
	require.NoError(t, w.stop(t, "third", last))

	d := &agentv1.Delegation{ParentAgentId: "keeper", TaskId: "tsk_child", ChildAgentId: "child"}
	react := func(ev *journal.Event) {
		ev.Namespace = "acme"
		events, err := React(w.state, w.env, ev)
		require.NoError(t, err)
		require.NotEmpty(t, events)
		for _, ev := range events {
			require.NoError(t, w.state.Apply(ev))
			require.NoError(t, w.paged.Apply(ev))
		}
	}
	react(&journal.Event{Payload: &agentv1.DelegationOpened{Delegation: d}})
	d = &agentv1.Delegation{ParentAgentId: "keeper", TaskId: "tsk_child", Worktree: pinnedTo("w1", false)}
	react(&journal.Event{Payload: &agentv1.DelegationUpdated{Delegation: d}})
	react(&journal.Event{AgentID: "keeper", Payload: &agentv1.AgentDeleting{}})
	react(&journal.Event{AgentID: "without-tasks", Payload: &agentv1.AgentDeleting{
		Agent: &agentv1.Agent{Visibility: agentv1.Visibility_VISIBILITY_PRIVATE},
	}})
	require.NoError(t, w.paged.Check())
	require.NoError(t, journaltest.Same(w.state, w.paged.Paged))
	ended(t, 32, &seen)
	require.Empty(t, seen.Missing(&taskv1.AgentTasksPage{}))
}

// TestABlockOfTasksIsAPage gives an agent many tasks: an event about one of them touches one block.
func TestABlockOfTasksIsAPage(t *testing.T) {
	w := newWorld()
	w.paged = journaltest.Checked(model.NewState, 50, nil)
	var ids []string
	for range 300 {
		task, err := w.exec(t, &taskv1.ExecCommandRequest{WorkItemId: "wi_1", Command: &taskv1.CommandSpec{Cmd: "x"}})
		require.NoError(t, err)
		ids = append(ids, task.GetTaskId())
	}
	require.NoError(t, w.stop(t, "keeper", ids[150]))
	require.NoError(t, w.paged.Check())
	touched := func(ev *journal.Event) (names []string) {
		ev.Namespace = "acme"
		w.state.Owners(ev, func(o snapshot.Owner) { names = append(names, o.ID) })
		return names
	}
	require.Equal(t, []string{"keeper/2"},
		touched(&journal.Event{Payload: &taskv1.TaskQueued{Task: &taskv1.Task{TaskId: "new", AgentId: "keeper"}}}))
	require.Equal(t, []string{"keeper/1"},
		touched(&journal.Event{Payload: &taskv1.TaskInputAccepted{TaskId: ids[200]}}))
	require.Equal(t, []string{"keeper/1"},
		touched(&journal.Event{Payload: &taskv1.TaskCancelled{Task: w.task(ids[150])}}))
	require.Equal(t, []string{"keeper/0"}, touched(&journal.Event{Payload: &taskv1.OwnerDeleted{AgentId: "keeper"}}))
	require.Empty(t, touched(&journal.Event{Payload: &taskv1.TaskInputAccepted{TaskId: "tsk_none"}}))
	var all []string
	w.state.AllOwners(func(o snapshot.Owner) { all = append(all, o.ID) })
	require.Equal(t, []string{"keeper/0", "keeper/1", "keeper/2"}, all)
	for _, id := range []string{"keeper", "keeper/3", "keeper/x", "keeper/-1", "keeper/01", "other/0", ""} {
		require.Nil(t, w.state.Page(snapshot.Owner{Namespace: "acme", ID: id}), id)
	}
}

// TestAnInvalidPageIsRefused reads pages that no state writes.
func TestAnInvalidPageIsRefused(t *testing.T) {
	stored := func(change func(*taskv1.StoredTask)) []*taskv1.StoredTask {
		s := &taskv1.StoredTask{Ordinal: 7, Task: &taskv1.Task{
			TaskId: "tsk_7", AgentId: "keeper",
			State: taskv1.TaskState_TASK_STATE_RUNNING,
		}}
		if change != nil {
			change(s)
		}
		return []*taskv1.StoredTask{s}
	}
	for says, c := range map[string]struct {
		owner string
		tasks []*taskv1.StoredTask
		gone  bool
	}{
		"has no page":              {owner: "keeper"},
		"has no task":              {tasks: stored(func(s *taskv1.StoredTask) { s.Task = nil })},
		"of agent":                 {tasks: stored(func(s *taskv1.StoredTask) { s.Task.AgentId = "other" })},
		"is there twice":           {tasks: stored(func(s *taskv1.StoredTask) { s.Task.TaskId = "tsk_1" })},
		"the unknown state 0":      {tasks: stored(func(s *taskv1.StoredTask) { s.Task.State = 0 })},
		"the unknown state 99":     {tasks: stored(func(s *taskv1.StoredTask) { s.Task.State = 99 })},
		"has the ordinal 0":        {tasks: stored(func(s *taskv1.StoredTask) { s.Ordinal = 0 })},
		"with 1000 items":          {tasks: make([]*taskv1.StoredTask, 1000)},
		"only the first one":       {owner: "keeper/1", gone: true},
		"number 1 of the page has": {tasks: []*taskv1.StoredTask{nil}},
	} {
		t.Run(says, func(t *testing.T) {
			s := model.NewState()
			require.NoError(t, s.AddPage(snapshot.Owner{Namespace: "acme", ID: "keeper/4"}, &taskv1.AgentTasksPage{
				Tasks: stored(func(s *taskv1.StoredTask) { s.Task.TaskId = "tsk_1" }),
			}))
			if c.owner == "" {
				c.owner = "keeper/0"
			}
			require.ErrorContains(t, s.AddPage(snapshot.Owner{Namespace: "acme", ID: c.owner}, &taskv1.AgentTasksPage{
				Tasks: c.tasks, Deleted: c.gone,
			}), says)
		})
	}
	require.ErrorContains(t, model.NewState().AddPage(snapshot.Owner{ID: "keeper/0"}, &taskv1.Task{}),
		fmt.Sprintf("%T", &taskv1.Task{}))
}
