package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/agent/children"
	"quartet/services/agent/state"
)

const (
	wtPreparing = taskv1.WorktreeState_WORKTREE_STATE_PREPARING
	wtReady     = taskv1.WorktreeState_WORKTREE_STATE_READY
	wtRemoved   = taskv1.WorktreeState_WORKTREE_STATE_REMOVED
	wtKept      = taskv1.WorktreeState_WORKTREE_STATE_KEPT
)

// forge stands for the worker behind the task plane.
type forge struct {
	plan, make, remove error
	kept               string // why a worktree is not removed
	made, removed      []*taskv1.Worktree
}

// forged returns a rig with a task plane whose worker the test speaks for.
func (r *rig) forged() *forge {
	f := &forge{}
	answer := func(method string, do func(proto.Message) (proto.Message, error)) {
		r.on(method, func(_ context.Context, req proto.Message) (proto.Message, error) {
			r.others.mu.Lock()
			defer r.others.mu.Unlock()
			return do(req)
		})
	}
	answer("PlanWorktree", func(req proto.Message) (proto.Message, error) {
		return &taskv1.PlanWorktreeResponse{
			Worktree:  &taskv1.Worktree{WorkerId: "w1", Repository: "/srv/repo", BaseCommit: strings.Repeat("a", 40)},
			Directory: "/srv/.quartet-worktrees", Subdirectory: strings.TrimPrefix(req.(*taskv1.PlanWorktreeRequest).
					GetWorkspaceRoot(), "/srv/repo"),
		}, f.plan
	})
	answer("MakeWorktree", func(req proto.Message) (proto.Message, error) {
		wt := proto.CloneOf(req.(*taskv1.MakeWorktreeRequest).GetWorktree())
		f.made = append(f.made, wt)
		wt.State = wtReady
		return &taskv1.MakeWorktreeResponse{Worktree: wt}, f.make
	})
	answer("RemoveWorktree", func(req proto.Message) (proto.Message, error) {
		wt := proto.CloneOf(req.(*taskv1.RemoveWorktreeRequest).GetWorktree())
		f.removed = append(f.removed, proto.CloneOf(wt))
		wt.State = wtRemoved
		if f.kept != "" {
			wt.State, wt.Reason = wtKept, f.kept
		}
		return &taskv1.RemoveWorktreeResponse{Worktree: wt}, f.remove
	})
	return f
}

func (r *rig) trySpawnTree(requestID string) (*agentv1.SpawnAgentResponse, error) {
	return r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
		ParentAgentId: "keeper", RequestId: requestID, InitialMessage: "work",
		WorkspaceMode: agentv1.WorkspaceMode_WORKSPACE_MODE_WORKTREE,
	})
}

func (r *rig) spawnTree() *agentv1.SpawnAgentResponse {
	r.t.Helper()
	return must.Value(r.trySpawnTree("tree"))(r.t)
}

func (r *rig) over(child *agentv1.SpawnAgentResponse) *agentv1.Delegation {
	r.t.Helper()
	r.until(func() bool { return !state.IsOpen(r.delegation(child.GetDelegationId())) })
	return r.delegation(child.GetDelegationId())
}

// T9: the child begins in its worktree, which carries its task's number; a clean
// one goes with it, a changed one is kept and named in the result.
func TestT9_AChildInItsWorktree(t *testing.T) {
	for kept, want := range map[string]taskv1.WorktreeState{"": wtRemoved, "2 uncommitted change(s)": wtKept} {
		t.Run(want.String(), func(t *testing.T) {
			r := family(t)
			f := r.forged()
			f.kept = kept
			child := r.spawnTree()
			require.Equal(t, "/srv/.quartet-worktrees/"+child.GetTaskId(), child.GetAgent().GetWorkspaceRoot())
			a := r.take(child.GetAgentId())
			require.Equal(t, agentv1.WorkspaceMode_WORKSPACE_MODE_WORKTREE, a.GetAgent().GetWorkspaceMode())
			wt := a.GetAgent().GetWorktree()
			require.Equal(t, wtReady, wt.GetState())
			require.Equal(t, "quartet/"+child.GetTaskId(), wt.GetBranch())
			require.Equal(t, "w1", wt.GetWorkerId(), "its commands are pinned there (T4)")
			require.True(t, proto.Equal(wt, r.delegation(child.GetDelegationId()).GetWorktree()))
			require.Equal(t, child.GetAgentId(), must.Value(r.trySpawnTree("tree"))(t).GetAgentId())
			r.submit(a, 0, "done it")
			r.finish(a, done)
			d := r.over(child)
			require.Equal(t, agentv1.DelegationOutcome_DELEGATION_OUTCOME_COMPLETED, d.GetOutcome())
			require.Equal(t, want, d.GetWorktree().GetState())
			if kept == "" {
				require.Equal(t, "done it", d.GetResultSummary())
			} else {
				require.Equal(t, "done it\n\n[worktree kept: "+wt.GetPath()+" on worker w1, branch "+wt.GetBranch()+
					", from commit "+wt.GetBaseCommit()+": "+kept+"]", d.GetResultSummary())
			}
			r.until(func() bool { return r.record(child.GetAgentId()).GetLifecycle() == deleted })
		})
	}
}

// T9: what cannot become a worktree is refused with nothing written; a repeated
// request has its first answer, whatever the worker says by then.
func TestT9_SpawnRefused(t *testing.T) {
	r := family(t)
	f := r.forged()
	before := len(r.events())
	for _, why := range []error{fault.NotAWorkTree.New("no"), fault.NotReady.New("no worker")} {
		r.others.set(func() { f.plan = why })
		must.Refuse(r.trySpawnTree("tree"))(t, fault.From(why).Reason())
	}
	require.Len(t, r.events(), before)
	r.others.set(func() { f.plan = nil })
	child := r.spawnTree()
	r.others.set(func() { f.plan = fault.NotReady.New("no worker") })
	require.Equal(t, child.GetAgentId(), r.spawnTree().GetAgentId())
}

// T9: a worktree that cannot be made ends the delegation as failed, without a child.
func TestT9_AWorktreeThatCannotBeMade(t *testing.T) {
	for name, why := range map[string]error{
		"git says no":                 fault.WorktreeFailed.New("disk full"),
		"the worker is away for long": fault.NotReady.New("away"),
	} {
		t.Run(name, func(t *testing.T) {
			r := family(t)
			f := r.forged()
			f.make = why
			var child *agentv1.SpawnAgentResponse
			spawned := make(chan struct{})
			go func() {
				defer close(spawned)
				child, _ = r.trySpawnTree("tree")
			}()
			r.eventually(func() bool {
				r.clk.Advance(children.MaxRetry)
				select {
				case <-spawned:
					return true
				default:
					return false
				}
			})
			d := r.over(child)
			require.Equal(t, agentv1.DelegationOutcome_DELEGATION_OUTCOME_FAILED, d.GetOutcome())
			require.Contains(t, d.GetResultSummary(), "spawn_agent_failed: "+fault.From(why).Message())
			require.Equal(t, wtRemoved, d.GetWorktree().GetState(), "whatever there was of it")
			_, err := r.service.GetAgent(r.operator(), &agentv1.GetAgentRequest{AgentId: child.GetAgentId()})
			require.ErrorIs(t, err, fault.NotFound)
		})
	}
}

// T9: a worker that is lost holds no end back; the worktree is reported as kept.
// So is one in which commands of the child still run.
func TestT9_CleaningUpNeverHoldsAnEndBack(t *testing.T) {
	for name, c := range map[string]struct {
		trouble func(r *rig, f *forge)
		why     string
	}{
		"the worker is lost": {
			func(_ *rig, f *forge) { f.remove = fault.NotReady.New("worker w1 is not connected") },
			"worker w1 is not connected",
		},
		"commands do not end": {func(r *rig, _ *forge) {
			r.others.answer["ListTasks"] = func(context.Context, proto.Message) (proto.Message, error) {
				return &taskv1.ListTasksResponse{TotalActive: 2}, nil
			}
		}, "2 command(s) still run in it"},
	} {
		t.Run(name, func(t *testing.T) {
			r := family(t)
			f := r.forged()
			child := r.spawnTree()
			r.others.set(func() { c.trouble(r, f) })
			r.stopTask(child)
			r.eventually(func() bool { return r.record(child.GetAgentId()).GetLifecycle() == deleting })
			for passed := time.Duration(0); passed < children.ClearTimeout/2; passed += children.MaxRetry {
				require.NoError(t, r.service.Quiesce(t.Context()))
				require.True(t, state.IsOpen(r.delegation(child.GetDelegationId())), "the worker may come back")
				r.clk.Advance(children.MaxRetry)
			}
			r.restart()
			d := r.over(child)
			require.Equal(t, agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED, d.GetOutcome())
			require.Equal(t, wtKept, d.GetWorktree().GetState())
			require.Contains(t, d.GetResultSummary(), c.why)
			require.Contains(t, d.GetResultSummary(), d.GetWorktree().GetPath())
		})
	}
}

// T9, T8: a stop while the worktree is being made ends both.
func TestT9_StoppedBeforeItWasMade(t *testing.T) {
	r := family(t)
	f := r.forged()
	f.make = fault.NotReady.New("away")
	ctx, cancel := context.WithCancel(r.operator())
	go func() {
		_, _ = r.service.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			ParentAgentId: "keeper", InitialMessage: "work",
			WorkspaceMode: agentv1.WorkspaceMode_WORKSPACE_MODE_WORKTREE,
		})
	}()
	var d *agentv1.Delegation
	r.eventually(func() bool {
		l, err := r.service.ListDelegations(r.operator(), &agentv1.ListDelegationsRequest{AgentId: "keeper"})
		if err == nil && len(l.GetDelegations()) == 1 {
			d = l.GetDelegations()[0]
		}
		return d != nil
	})
	cancel()
	require.Equal(t, wtPreparing, d.GetWorktree().GetState())
	child := &agentv1.SpawnAgentResponse{
		DelegationId: d.GetDelegationId(), TaskId: d.GetTaskId(), AgentId: d.GetChildAgentId(),
	}
	r.stopTask(child)
	d = r.over(child)
	require.Equal(t, agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED, d.GetOutcome())
	require.Equal(t, wtRemoved, d.GetWorktree().GetState())
	require.Equal(t, wtPreparing, f.removed[0].GetState(), "the worker may discard it: nobody worked in it")
}

// T9, X1: the journal is cut after every frame of the whole life of a child with
// a worktree; a process that begins there brings it to the same end, and never
// asks for it to be made again once the child may have worked in it.
func TestT9_AWorktreeSurvivesEveryCut(t *testing.T) {
	whole := family(t)
	whole.forged()
	child := whole.spawnTree()
	a := whole.take(child.GetAgentId())
	whole.submit(a, 0, "the result")
	whole.finish(a, done)
	whole.until(func() bool { return whole.record(child.GetAgentId()).GetLifecycle() == deleted })
	require.NoError(t, whole.service.Quiesce(t.Context()))
	frames := whole.frames()
	for cut := 1; cut <= len(frames); cut++ {
		var f *forge
		var before []*journal.Event
		r := cutRigWith(t, frames[:cut], func(r *rig) { f, before = r.forged(), r.events() })
		if len(before) < 2 {
			continue // before the delegation
		}
		raised, open := false, true
		for _, ev := range before {
			if _, ok := ev.Payload.(*agentv1.DelegationCompleted); ok {
				open = false
			}
			raised = raised || ev.AgentID == child.GetAgentId()
		}
		r.drive(child.GetAgentId(), func(d *agentv1.Delegation) bool {
			return !state.IsOpen(d) && r.record(child.GetAgentId()).GetLifecycle() == deleted
		}, child.GetDelegationId())
		d := r.delegation(child.GetDelegationId())
		require.Equal(t, wtRemoved, d.GetWorktree().GetState(), "cut %d", cut)
		require.NoError(t, r.service.Quiesce(t.Context()))
		r.others.set(func() {
			if raised {
				require.Empty(t, f.made, "cut %d", cut)
			}
			require.Equal(t, open, len(f.removed) > 0, "cut %d", cut)
		})
	}
}
