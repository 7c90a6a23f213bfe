package agent

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"quartet/services/agent/ref"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	// makeTerm is how long a child waits for a worktree whose worker cannot be
	// reached before its delegation fails.
	makeTerm = time.Minute
	// clearTerm is how long the end of a child waits for its commands to end and
	// for its worktree's worker. After that the worktree is reported as kept:
	// cleaning up never holds an end back (SPEC T9).
	clearTerm = 30 * time.Second
	// readyTerm bounds how long SpawnAgent waits for the worktree, which is made
	// all the same.
	readyTerm = 10 * time.Second
)

// site is where a child's worktree will be.
type site struct {
	worktree                *taskv1.Worktree
	directory, subdirectory string
}

// worktreeSite asks the workers for the work tree around the parent's workspace
// root. Nothing is made yet.
func (s *Service) worktreeSite(ctx context.Context, k key) (*site, error) {
	a, err := s.child(ctx, k)
	if err != nil || a.rec == nil {
		return nil, err // the rule says what is wrong
	}
	plane, err := s.worktrees()
	if err != nil {
		return nil, err
	}
	r, err := plane.PlanWorktree(s.asPlane(ctx, k.Namespace), &taskv1.PlanWorktreeRequest{
		WorkspaceRoot: a.rec.GetWorkspaceRoot(), WorkerId: a.rec.GetWorktree().GetWorkerId(), SharedWorker: a.rec.GetWorktree().GetSharedWorker(),
	})
	if err != nil {
		return nil, err
	}
	return &site{r.GetWorktree(), r.GetDirectory(), r.GetSubdirectory()}, nil
}

func (s *Service) worktrees() (taskv1.WorktreeServiceClient, error) {
	conn, err := s.deps.Conn("task")
	if err != nil {
		return nil, err
	}
	return taskv1.NewWorktreeServiceClient(conn), nil
}

// lay gives a delegation the worktree that carries its task's number, and the
// child a workspace root in it.
func (at *site) lay(d *agentv1.Delegation, child *agentv1.Agent) {
	wt := proto.CloneOf(at.worktree)
	wt.State = taskv1.WorktreeState_WORKTREE_STATE_PREPARING
	wt.Path, wt.Branch = path.Join(at.directory, d.GetTaskId()), "quartet/"+d.GetTaskId()
	d.Worktree = wt
	child.WorkspaceMode, child.WorkspaceRoot = agentv1.WorkspaceMode_WORKSPACE_MODE_WORKTREE, path.Join(wt.GetPath(), at.subdirectory)
}

// unmade reports whether the child of a delegation has to wait for its worktree.
func unmade(d *agentv1.Delegation) bool {
	return d.GetWorktree().GetState() == taskv1.WorktreeState_WORKTREE_STATE_PREPARING
}

// makeWorktree takes the step before a child is raised. failed says why there
// will be no worktree, and so no child.
func (s *Service) makeWorktree(ctx context.Context, parent key, d *delegation) (failed string, again bool, err error) {
	plane, err := s.worktrees()
	if err != nil {
		return "", false, err
	}
	r, err := plane.MakeWorktree(ctx, &taskv1.MakeWorktreeRequest{Worktree: d.rec.GetWorktree()})
	if err != nil {
		f := fault.From(err)
		if f.Reason() != fault.WorktreeFailed && s.deps.Clock.Now().Sub(d.rec.GetCreatedAt().AsTime()) < makeTerm {
			return "", true, nil
		}
		return "spawn_agent_failed: " + f.Message(), false, nil
	}
	return "", false, s.step(ctx, parent, "NoteWorktree", func(a *agentState, _ journal.Env) []*journal.Event {
		return a.worktreeReady(d.rec.GetDelegationId(), r.GetWorktree())
	})
}

func (a *agentState) worktreeReady(delegationID string, wt *taskv1.Worktree) []*journal.Event {
	d := a.delegation(delegationID)
	if d == nil || !isOpen(d.rec) || !unmade(d.rec) {
		return nil
	}
	next := proto.CloneOf(d.rec)
	next.Worktree = wt
	return []*journal.Event{delegationEvent(next, &agentv1.DelegationUpdated{Delegation: next})}
}

// clearWorktree is the last step before a delegation is completed: the worktree
// goes if nothing was changed in it. It may be taken again after a crash at any
// line. since is when the end began.
func (s *Service) clearWorktree(ctx context.Context, k key, d *delegation, since time.Time) (wt *taskv1.Worktree, again bool, err error) {
	if d == nil || !isOpen(d.rec) || d.rec.GetWorktree() == nil {
		return nil, false, nil
	}
	over := s.deps.Clock.Now().Sub(since) >= clearTerm
	kept := func(reason string) (*taskv1.Worktree, bool, error) {
		wt := proto.CloneOf(d.rec.GetWorktree())
		wt.State, wt.Reason = taskv1.WorktreeState_WORKTREE_STATE_KEPT, reason
		return wt, false, nil
	}
	tasks, err := s.tasks()
	if err != nil {
		return nil, false, err
	}
	r, err := tasks.ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: k.ID, PageSize: 1})
	switch {
	case err != nil && fault.From(err).Code() != codes.NotFound: // of a child that was never made
		return nil, false, err
	case r.GetTotalActive() > 0 && !over:
		return nil, true, nil
	case r.GetTotalActive() > 0:
		return kept(fmt.Sprintf("%d command(s) still run in it", r.GetTotalActive()))
	}
	plane, err := s.worktrees()
	if err != nil {
		return nil, false, err
	}
	done, err := plane.RemoveWorktree(ctx, &taskv1.RemoveWorktreeRequest{Worktree: d.rec.GetWorktree()})
	switch {
	case err == nil:
		return done.GetWorktree(), false, nil
	case !over:
		return nil, true, nil
	}
	return kept(fault.From(err).Message())
}

// withWorktree adds to a result what the supervisor has to know of a worktree
// that was kept.
func withWorktree(result string, wt *taskv1.Worktree) string {
	if wt.GetState() != taskv1.WorktreeState_WORKTREE_STATE_KEPT {
		return result
	}
	note := fmt.Sprintf("[worktree kept: %s on worker %s, branch %s, from commit %s: %s]",
		wt.GetPath(), wt.GetWorkerId(), wt.GetBranch(), wt.GetBaseCommit(), cmp.Or(wt.GetReason(), "it was changed"))
	if strings.TrimSpace(result) == "" {
		return note
	}
	return clippedTo(result, maxResultBytes-len(note)-2) + "\n\n" + note
}

// awaitWorktree waits until the child stands in its worktree or never will.
func (s *Service) awaitWorktree(ctx context.Context, parent key, delegationID string) {
	ctx, cancel := context.WithTimeout(ctx, readyTerm)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		d, _, err := s.delegationOf(ctx, parent, delegationID)
		if err != nil || d == nil || !isOpen(d.rec) {
			return
		}
		if c, err := s.child(ctx, ref.Agent{Namespace: parent.Namespace, ID: d.rec.GetChildAgentId()}); err != nil || c.rec != nil {
			return
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}
