package model

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/groups"
	"quartet/pkg/resident"
)

// evicting returns an empty state with a file.
func evicting(f *resident.File) *State {
	s := NewState()
	s.UseFile(f)
	return s
}

// queued and ended are events of the task of an agent with a number.
func queued(agent string, n int) *journal.Event {
	t := &taskv1.Task{
		TaskId: fmt.Sprintf("tsk_%s_%d", agent, n), AgentId: agent, WorkItemId: fmt.Sprintf("wi_%d", n%3), Revision: 1,
		Kind: taskv1.TaskKind_TASK_KIND_COMMAND_TASK, State: taskv1.TaskState_TASK_STATE_QUEUED,
		Command: &taskv1.CommandSpec{Cmd: "x", Pool: agent},
	}
	return &journal.Event{Namespace: "acme", AgentID: agent, TaskID: t.GetTaskId(), Payload: &taskv1.TaskQueued{
		Task: t,
	}}
}

func ended(agent string, n int) *journal.Event {
	ev := queued(agent, n)
	t := NextRevision(TaskOf(ev))
	t.State = taskv1.TaskState_TASK_STATE_CANCELLED
	ev.Payload = &taskv1.TaskCancelled{Task: t}
	return ev
}

// end gives an agent tasks with numbers from..to-1 that have ended.
func end(t require.TestingT, agent string, from, to int, states ...journal.State) {
	for n := from; n < to; n++ {
		for _, s := range states {
			require.NoError(t, s.Apply(queued(agent, n)))
			require.NoError(t, s.Apply(ended(agent, n)))
		}
	}
}

// ids returns the ids of tasks.
func ids(tasks []*taskv1.Task) (all []string) {
	for _, t := range tasks {
		all = append(all, t.GetTaskId())
	}
	return all
}

// sameAnswers requires that two states have the same, have the same pages, byte for byte, and answer the same, and that
// no read changes who is evicted.
func sameAnswers(t require.TestingT, whole, s *State) {
	before := s.Counts()
	require.NoError(t, journaltest.Same(whole, s))
	require.Equal(t, journaltest.EncodedPages(t, whole), journaltest.EncodedPages(t, s))
	require.ElementsMatch(t, whole.DeletedBefore(time.Unix(1<<40, 0)), s.DeletedBefore(time.Unix(1<<40, 0)))
	for o := range whole.Agents() {
		for _, item := range []string{"", "wi_1", "wi_none"} {
			for _, req := range []*taskv1.ListTasksRequest{
				{WorkItemId: item},
				{WorkItemId: item, IncludeTerminal: true},
			} {
				want, got := whole.ListPage(o, req, 1<<62, 50), s.ListPage(o, req, 1<<62, 50)
				require.Equal(t, ids(want.Tasks), ids(got.Tasks))
				require.Equal(t, []any{want.Last, want.More, want.Active}, []any{got.Last, got.More, got.Active})
			}
		}
		require.Len(t, slices.Collect(s.Active(o)), len(slices.Collect(whole.Active(o))))
		for want := range whole.TasksOf(o) {
			got := s.FindTask(o.Namespace, o.ID, want.Task.GetTaskId())
			require.True(t, proto.Equal(want.Task, got.Task))
			require.Equal(t, []any{want.Ordinal, want.index, whole.PageOf(o, want.index)},
				[]any{got.Ordinal, got.index, s.PageOf(o, got.index)})
			require.Nil(t, s.FindTask("globex", o.ID, want.Task.GetTaskId()))
		}
		require.Equal(t, slices.Collect(whole.TasksOf(o))[0].Task.GetTaskId(),
			slices.Collect(s.TasksOf(o))[0].Task.GetTaskId())
	}
	require.Nil(t, s.Task("tsk_none"))
	require.Equal(t, [2]int{before.Resident, before.Evicted}, [2]int{s.Counts().Resident, s.Counts().Evicted})
}

// Wherever tasks that have ended are, and whether their agents are evicted, is seen by nobody who reads.
func TestEvictedAgents(t *testing.T) {
	whole, s := NewState(), evicting(journaltest.NewFile(t))
	for agent, n := range map[string]int{
		"none-packed": 3, "some-packed": 2*groups.Size + 3,
		"all-packed": 3 * groups.Size, "many": pageTasks + 40,
	} {
		end(t, agent, 0, n, whole, s)
	}
	require.Equal(t, resident.Counts{Resident: 4}, s.Counts())
	sameAnswers(t, whole, s)
	journaltest.EvictAll(t, s)
	require.Equal(t, 4, s.Counts().Evicted)
	require.Empty(t, s.Items)
	require.Empty(t, s.ListPage(plane.KeyOf("acme", "many"), &taskv1.ListTasksRequest{}, 1<<62, 50).Tasks)
	require.Empty(t, slices.Collect(s.Active(plane.KeyOf("acme", "many"))))
	s.AllOwners(func(snapshot.Owner) {})
	require.Equal(t, resident.Counts{Evicted: 4}, s.Counts(), "none of these reads an evicted agent")
	sameAnswers(t, whole, s)

	require.Error(t, s.Apply(ended("many", 1)))
	require.Error(t, s.Apply(queued("many", pageTasks+39)))
	require.Equal(t, 4, s.Counts().Evicted, "what is refused changes nothing")
	for _, state := range []*State{whole, s} {
		require.NoError(t, state.Apply(queued("some-packed", 2*groups.Size+3)))
	}
	require.Equal(t, 3, s.Counts().Evicted, "who gets a task is resident")
	sameAnswers(t, whole, s)
}

// An agent with a task that has not ended stays, and so does one with a task that is left in its queue.
func TestAgentsThatStay(t *testing.T) {
	whole, s := NewState(), evicting(journaltest.NewFile(t))
	end(t, "a", 0, groups.Size+3, whole, s)
	both := func(ev func(string, int) *journal.Event, n int) {
		require.NoError(t, whole.Apply(ev("a", n)))
		require.NoError(t, s.Apply(ev("a", n)))
		journaltest.EvictAll(t, s)
		sameAnswers(t, whole, s)
	}
	both(queued, 90)
	require.Equal(t, 1, s.Counts().Resident)
	both(queued, 91)
	both(ended, 91)
	require.Len(t, s.Queues, 1)
	require.Equal(t, 1, s.Counts().Resident)
	both(ended, 90)
	require.Equal(t, 1, s.Counts().Evicted)
}

// Nothing is left of the tasks of agents that are erased: neither in the index nor in the file.
func TestEvictedAgentsAreErased(t *testing.T) {
	f := journaltest.NewFile(t)
	s := evicting(f)
	for _, agent := range []string{"a", "b", "c"} {
		end(t, agent, 0, groups.Size+3, s)
	}
	all := f.Bytes()
	journaltest.EvictAll(t, s)
	for _, agent := range []string{"b", "c"} {
		require.NoError(t,
			s.Apply(&journal.Event{Namespace: "acme", CreatedAt: time.Unix(100, 0), Payload: &taskv1.OwnerDeleted{
				AgentId: agent,
			}}))
	}
	before := s.Counts()
	require.Empty(t, s.DeletedBefore(time.Unix(100, 0)))
	require.Len(t, s.DeletedBefore(time.Unix(101, 0)), 2)
	require.Equal(t, before, s.Counts(), "none is read for that")
	s.Erase(func(_, id string) bool { return id != "a" }, func(snapshot.Owner) {})
	require.Equal(t, [2]int{0, 1}, [2]int{s.Counts().Resident, s.Counts().Evicted})
	require.Equal(t, groups.Size+3, s.Index.Len())
	require.Equal(t, 1, s.Numbers.Len())
	require.Nil(t, s.Task("tsk_b_7"))
	require.Equal(t, "tsk_a_7", s.Task("tsk_a_7").Task.GetTaskId())
	require.EqualValues(t, groups.Size+3, s.last)
	require.NoError(t, s.Apply(queued("a", 99)), "it is resident")
	require.Less(t, f.Bytes(), all/2, "one of three groups is left")
}

// Whatever needs a task that cannot be read from the file panics with the error that has the partition loaded again,
// and that one finds it.
func TestUnreadableTasks(t *testing.T) {
	open := func(log *journaltest.MemLog) *journal.Partition[*State] {
		p, err := journal.Open(t.Context(), journal.Config[*State]{
			Log: log, Plane: "task", New: NewState,
			Registry: journal.NewRegistry(taskv1.File_quartet_task_v1_task_event_proto), NewID: id.New().New,
			Logger: zap.NewNop(), Eviction: &snapshot.EvictionPolicy{Dir: t.TempDir(), Keep: 1},
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = p.Close(context.WithoutCancel(t.Context())) })
		return p
	}
	decide := func(p *journal.Partition[*State], ev func(string, int) *journal.Event, agent string, n int) error {
		_, _, err := journal.Do(t.Context(), p, journal.Op[*State, struct{}]{
			Method: "Exec", Actor: journal.Actor{Namespace: "acme", Principal: "op"}, AgentID: agent,
			Decide: func(*State, journal.Env) (journal.Decision[struct{}], error) {
				return journal.Decision[struct{}]{Events: []*journal.Event{ev(agent, n)}}, nil
			},
		})
		return err
	}
	for name, read := range map[string]func(p *journal.Partition[*State]){
		"task": func(p *journal.Partition[*State]) {
			_, _, err := journal.View(t.Context(), p, func(s *State) (any, error) {
				require.Equal(t, "tsk_a_5", s.Task("tsk_a_5").Task.GetTaskId())
				return nil, nil
			})
			require.NoError(t, err)
		},
		"list": func(p *journal.Partition[*State]) {
			page, _, err := journal.View(t.Context(), p, func(s *State) (Page, error) {
				return s.ListPage(plane.KeyOf("acme", "a"), &taskv1.ListTasksRequest{IncludeTerminal: true}, 1<<62, 50),
					nil
			})
			require.NoError(t, err)
			require.Len(t, page.Tasks, groups.Size+3)
		},
		"event": func(p *journal.Partition[*State]) { require.NoError(t, decide(p, queued, "a", 50)) },
	} {
		t.Run(name, func(t *testing.T) {
			p := open(journaltest.NewMemLog())
			for _, agent := range []string{"a", "b"} {
				for n := range groups.Size + 3 {
					require.NoError(t, decide(p, queued, agent, n))
					require.NoError(t, decide(p, ended, agent, n))
				}
			}
			require.NoError(t, p.EvictAll(t.Context()))
			require.Equal(t, resident.Counts{Evicted: 2}, p.Resident().Counts)
			_, _, err := journal.View(t.Context(), p, func(s *State) (any, error) { return nil, s.File.Close() })
			require.NoError(t, err)
			read(p)
			require.Equal(t, 2, p.Resident().Resident)
			require.True(t, p.Resident().Failed)
		})
	}
}
