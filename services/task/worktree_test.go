package task

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/rpc"
)

// T9: the handle has the worktree from the beginning, hears that it is ready, and
// says at the end what became of it; an event that comes again changes nothing.
func TestT9_TheHandleShowsItsWorktree(t *testing.T) {
	s := newChildSite(t)
	d := func(state taskv1.WorktreeState, outcome string) *agentv1.Delegation {
		d := delegated(outcome, "done")
		d.Worktree = &taskv1.Worktree{
			State: state, WorkerId: "w1", Path: "/srv/.quartet-worktrees/tsk_1", Branch: "quartet/tsk_1",
		}
		return d
	}
	s.say(&agentv1.DelegationOpened{Delegation: d(taskv1.WorktreeState_WORKTREE_STATE_PREPARING, "")})
	s.await(taskv1.TaskState_TASK_STATE_RUNNING)
	ready := d(taskv1.WorktreeState_WORKTREE_STATE_READY, "")
	for range 2 {
		s.say(&agentv1.DelegationUpdated{Delegation: ready})
	}
	require.Eventually(t, func() bool { return proto.Equal(s.task().GetWorktree(), ready.GetWorktree()) }, time.Minute,
		time.Millisecond)
	kept := d(taskv1.WorktreeState_WORKTREE_STATE_KEPT, "completed")
	for range 2 {
		s.say(&agentv1.DelegationCompleted{Delegation: kept})
	}
	got := s.await(taskv1.TaskState_TASK_STATE_COMPLETED)
	require.Equal(t, taskv1.WorktreeState_WORKTREE_STATE_KEPT, got.GetWorktree().GetState())
	s.restart()
	require.True(t, proto.Equal(got, s.task()))
	require.Equal(t, []string{"task_queued", "task_started", "task_worktree_changed", "task_completed"}, s.types())
}

// X2, T1: a call that is repeated has less time to wait; it is the same call.
func TestX2_WaitingLessIsNoOtherRequest(t *testing.T) {
	s := newSite(t)
	exec := func(yield time.Duration) string {
		return must.Value(s.client().ExecCommand(s.ctx, &taskv1.ExecCommandRequest{
			AgentId: "keeper", RequestId: "run/0/1", Command: &taskv1.CommandSpec{Cmd: "make"},
			YieldTime: durationpb.New(yield),
		}))(t).GetTask().GetTaskId()
	}
	first := exec(0)
	again := make(chan string, 1)
	go func() { again <- exec(time.Second) }()
	require.Eventually(t, func() bool {
		s.clk.Advance(time.Second)
		return len(again) > 0
	}, time.Minute, time.Millisecond)
	require.Equal(t, first, <-again)
}

// X2: what came of a command may be asked for without running it, with any time
// left to wait.
func TestX2_RecallOfACommand(t *testing.T) {
	s := newSite(t)
	req := func() *taskv1.ExecCommandRequest {
		return &taskv1.ExecCommandRequest{AgentId: "keeper", RequestId: "run/0/1", Command: &taskv1.CommandSpec{
			Cmd: "make",
		}, YieldTime: durationpb.New(0)}
	}
	_, err := s.client().ExecCommand(rpc.Recall(s.ctx), req())
	require.ErrorIs(t, fault.From(err), fault.NotFound)
	l := must.Value(s.client().ListTasks(s.ctx, &taskv1.ListTasksRequest{AgentId: "keeper", IncludeTerminal: true}))(t)
	require.Empty(t, l.GetTasks())
	first := must.Value(s.client().ExecCommand(s.ctx, req()))(t)
	again := must.Value(s.client().ExecCommand(rpc.Recall(s.ctx), req()))(t)
	require.Equal(t, first.GetTask().GetTaskId(), again.GetTask().GetTaskId())
}
