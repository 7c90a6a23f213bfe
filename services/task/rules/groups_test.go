package rules

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// plain are the tasks of agents, as a reader sees them: the newest task that an event carried, by id, in the order of
// their creation.
type plain struct {
	tasks map[string]*taskv1.Task
	ids   []string
}

// read brings the plain tasks up to date with the events of a world.
func (p *plain) read(w *world) {
	for _, ev := range w.events {
		t := model.TaskOf(ev)
		if p.tasks[t.GetTaskId()] == nil {
			p.ids = append(p.ids, t.GetTaskId())
		}
		p.tasks[t.GetTaskId()] = t
	}
	w.events = nil
}

// list returns the ids of the tasks that a request lists, newest first.
func (p *plain) list(req *taskv1.ListTasksRequest) (ids []string) {
	for _, id := range slices.Backward(p.ids) {
		t := p.tasks[id]
		if t.GetAgentId() == req.GetAgentId() && (req.GetIncludeTerminal() || !model.Terminal(t.GetState())) &&
			(req.GetWorkItemId() == "" || t.GetWorkItemId() == req.GetWorkItemId()) {
			ids = append(ids, id)
		}
	}
	return ids
}

// requireSame requires that a state has these tasks, by id and in lists with pages of a size.
func (p *plain) requireSame(t require.TestingT, s *model.State, size int) {
	for id, task := range p.tasks {
		require.True(t, proto.Equal(task, s.Task(id).Task), id)
		require.NotNil(t, s.FindTask("acme", task.GetAgentId(), id))
		require.Nil(t, s.FindTask("globex", task.GetAgentId(), id))
		require.Nil(t, s.FindTask("acme", "another", id))
	}
	require.Nil(t, s.Task("tsk_none"))
	for _, agent := range []string{"keeper", "other"} {
		for _, item := range []string{"", "wi_1", "wi_2", "wi_3"} {
			for _, terminal := range []bool{false, true} {
				req := &taskv1.ListTasksRequest{AgentId: agent, WorkItemId: item, IncludeTerminal: terminal}
				var got []string
				before := int64(1 << 62)
				for more := true; more; {
					page := s.ListPage(model.Owner{Namespace: "acme", ID: agent}, req, before, size)
					for _, task := range page.Tasks {
						got = append(got, task.GetTaskId())
					}
					before, more = page.Last, page.More
				}
				require.Equal(t, p.list(req), got, "%v", req)
			}
		}
	}
}

// packedTasks returns how many tasks of an agent are packed.
func packedTasks(s *model.State, agent string) (n int) {
	s.AllOwners(func(o snapshot.Owner) {
		if page := s.Page(o).(*taskv1.AgentTasksPage); o.ID[:len(agent)+1] == agent+"/" {
			for _, g := range page.GetPacked() {
				n += len(g.GetIdHashes())
			}
		}
	})
	return n
}

// TestT3_GroupsOfEndedTasks: whether a task is packed is seen by nobody: lists, their pages, and tasks by id are those
// of all tasks, in whatever order these end, and whatever the clock does.
func TestT3_GroupsOfEndedTasks(t *testing.T) {
	count, idle := 0, 0
	history := func(t *rapid.T) {
		w := newWorld()
		w.paged = journaltest.Checked(model.NewState, 40, nil)
		p := &plain{tasks: map[string]*taskv1.Task{}}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			w.env.Now = w.env.Now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 1, 5, -7}).
				Draw(t, "seconds")) * time.Second)
			agent := rapid.SampledFrom([]string{"keeper", "keeper", "keeper", "other"}).Draw(t, "agent")
			active := p.list(&taskv1.ListTasksRequest{AgentId: agent})
			switch step := rapid.IntRange(0, 9).Draw(t, "step"); {
			case step < 4 || len(active) == 0:
				must.Value(w.exec(t, &taskv1.ExecCommandRequest{
					AgentId: agent, WorkItemId: rapid.SampledFrom([]string{"", "wi_1", "wi_2"}).Draw(t, "item"),
					Command: &taskv1.CommandSpec{Cmd: "x"},
				}))(t)
			case step < 5:
				w.lease(t, one(3))
			case step < 8:
				task := p.tasks[active[rapid.IntRange(max(0, len(active)-3), len(active)-1).Draw(t, "which")]]
				w.end(t, End{
					TaskID: task.GetTaskId(), Generation: task.GetLeaseGeneration(), Reason: ReasonExited,
					ExitCode: code(0), Bytes: 7,
				})
			default:
				require.NoError(t,
					w.stop(t, agent, active[rapid.IntRange(max(0, len(active)-3), len(active)-1).Draw(t, "which")]))
			}
			p.read(w)
		}
		size := rapid.IntRange(1, 40).Draw(t, "page size")
		for _, s := range []*model.State{w.state, w.paged.Paged} {
			p.requireSame(t, s, size)
		}
		for id := range p.tasks {
			require.False(t, w.end(t, End{TaskID: id, Generation: 99}))
		}
		for _, agent := range []string{"keeper", "other"} {
			count += packedTasks(w.state, agent)
		}
		require.NoError(t, w.paged.Check())
		require.NoError(t, journaltest.Same(w.state, w.paged.Paged))
		for _, agent := range []string{"keeper", "other"} {
			require.NoError(t,
				w.paged.Apply(&journal.Event{Namespace: "acme", AgentID: agent, Payload: &taskv1.OwnerDeleted{
					AgentId: agent,
				}}))
		}
		idle += len(must.Value(w.paged.EraseDeleted())(t))
	}
	for n := 0; n < 20 && (count == 0 || idle == 0); n++ { // a few histories need not have both
		rapid.Check(t, history)
	}
	require.Positive(t, count)
	require.Positive(t, idle, "those with a task that has not ended are left for later")
}

// ended returns a world in which keeper has so many tasks that have ended.
func ended(t *testing.T, n int, seen *journaltest.Seen) *world {
	w := newWorld()
	w.paged = journaltest.Checked(model.NewState, 10, seen)
	for i := range n {
		task := must.Value(w.exec(t, &taskv1.ExecCommandRequest{
			WorkItemId: fmt.Sprintf("wi_%d", i%3),
			Command:    &taskv1.CommandSpec{Cmd: "x"},
		}))(t)
		require.NoError(t, w.stop(t, "keeper", task.GetTaskId()))
	}
	require.NoError(t, w.paged.Check())
	return w
}

// A task that has ended is not queued a second time, and gets no other state, though it is packed.
func TestT3_APackedTaskStays(t *testing.T) {
	w := ended(t, 20, nil)
	require.Equal(t, 16, packedTasks(w.state, "keeper"))
	first := allTasks(w.state)[0].Task
	before := dump(w.state)
	for _, payload := range []proto.Message{
		&taskv1.TaskQueued{Task: &taskv1.Task{
			TaskId: first.GetTaskId(), AgentId: "keeper", State: taskv1.TaskState_TASK_STATE_QUEUED,
		}}, &taskv1.TaskCancelled{Task: model.NextRevision(first)},
	} {
		ev := model.NewEvent("acme", first, payload)
		require.Error(t, w.state.Apply(ev))
		touched := 0
		w.state.Owners(ev, func(snapshot.Owner) { touched++ })
		require.Equal(t, 1, touched)
	}
	require.Equal(t, before, dump(w.state))
	require.ErrorContains(t, w.stop(t, "keeper", first.GetTaskId()), "has ended")
}

// One task that has not ended, or that is left in its queue, keeps the tasks around it from being packed.
func TestT3_WhatIsPacked(t *testing.T) {
	w := newWorld()
	var ids []string
	for range 16 {
		task := must.Value(w.exec(t, &taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{Cmd: "x"}}))(t)
		ids = append(ids, task.GetTaskId())
	}
	for _, id := range ids[1:] {
		require.NoError(t, w.stop(t, "keeper", id)) // they stay in the queue behind the first one
	}
	require.Zero(t, packedTasks(w.state, "keeper"))
	require.Equal(t, 1, w.lease(t, one(1)))
	require.Zero(t, packedTasks(w.state, "keeper"), "the first one runs")
	require.True(t, w.end(t, End{TaskID: ids[0], Generation: 1, Reason: ReasonExited, ExitCode: code(0)}))
	require.Equal(t, 16, packedTasks(w.state, "keeper"))
	require.NoError(t, w.paged.Check())
}

// Tasks of a snapshot without groups are packed when they are read.
func TestT3_PagesOfFormat2(t *testing.T) {
	w := ended(t, 40, nil)
	read, old := model.NewState(), &taskv1.AgentTasksPage{}
	for _, r := range allTasks(w.state) {
		old.Tasks = append(old.Tasks, &taskv1.StoredTask{Task: r.Task, Ordinal: r.Ordinal})
	}
	require.NoError(t, read.AddPage(snapshot.Owner{Namespace: "acme", ID: "keeper/0"}, old))
	require.NoError(t, journaltest.Same(w.state, read))
	require.Equal(t, 32, packedTasks(read, "keeper"))
}

// A page with groups is read as it was written, or is an error.
func TestT3_PagesOfGroups(t *testing.T) {
	w := ended(t, 40, nil)
	o := snapshot.Owner{Namespace: "acme", ID: "keeper/0"}
	page := func() *taskv1.AgentTasksPage { return proto.CloneOf(w.state.Page(o).(*taskv1.AgentTasksPage)) }
	require.Len(t, page().GetPacked(), 2)
	require.Len(t, page().GetTasks(), 8)
	require.NoError(t, model.NewState().AddPage(o, page()))
	for want, change := range map[string]func(p *taskv1.AgentTasksPage){
		"group 8 has":            func(p *taskv1.AgentTasksPage) { p.Packed[1].Group = 8 },
		"group 0 is there twice": func(p *taskv1.AgentTasksPage) { p.Packed[1].Group = 0 },
		"with 15 items": func(p *taskv1.AgentTasksPage) {
			p.Packed[0].IdHashes = p.GetPacked()[0].GetIdHashes()[1:]
		},
		"of 15 items": func(p *taskv1.AgentTasksPage) {
			p.Packed[0].ItemHashes = p.GetPacked()[0].GetItemHashes()[1:]
		},
		"has 0 bytes":           func(p *taskv1.AgentTasksPage) { p.Packed[0].Content = nil },
		"from ordinal 0":        func(p *taskv1.AgentTasksPage) { p.Packed[0].FirstOrdinal = 0 },
		"to 15":                 func(p *taskv1.AgentTasksPage) { p.Packed[0].LastOrdinal = 15 },
		"a page with 136 items": func(p *taskv1.AgentTasksPage) { p.Packed = slices.Repeat(p.GetPacked(), 4) },
	} {
		p := page()
		change(p)
		require.ErrorContains(t, model.NewState().AddPage(o, p), want, want)
	}
}
