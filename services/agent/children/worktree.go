package children

import (
	"context"
	"fmt"
	"path"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/retry"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

const (
	// makeTimeout is how long a child waits for a worktree whose worker is unreachable
	// before its delegation fails.
	makeTimeout = time.Minute
	// ClearTimeout is how long the end of a child waits for its commands to end and for
	// the worker of its worktree. After that the worktree is reported as kept: cleaning
	// up never delays an end for longer (SPEC T9).
	ClearTimeout = 30 * time.Second
	// readyTimeout bounds how long SpawnAgent waits for the worktree, which the Supervisor makes
	// whether or not SpawnAgent waits.
	readyTimeout = 10 * time.Second
)

// worktreeSite is where a child's worktree will be.
type worktreeSite struct {
	worktree                *taskv1.Worktree
	directory, subdirectory string
}

// planWorktree asks the workers for the work tree that contains the parent's workspace
// root. Nothing is made yet.
func (s *Service) planWorktree(ctx context.Context, k plane.Key) (*worktreeSite, error) {
	a, err := s.childStatus(ctx, k)
	if err != nil || a.Record == nil {
		return nil, err // the rule refuses
	}
	plane, err := s.worktrees()
	if err != nil {
		return nil, err
	}
	r, err := plane.PlanWorktree(access.AsPlane(ctx, k.Namespace), &taskv1.PlanWorktreeRequest{
		WorkspaceRoot: a.Record.GetWorkspaceRoot(), WorkerId: a.Record.GetWorktree().GetWorkerId(),
		SharedWorker: a.Record.GetWorktree().GetSharedWorker(),
	})
	if err != nil {
		return nil, err
	}
	return &worktreeSite{r.GetWorktree(), r.GetDirectory(), r.GetSubdirectory()}, nil
}

func (s *Service) worktrees() (taskv1.WorktreeServiceClient, error) {
	conn, err := s.deps.Conn("task")
	if err != nil {
		return nil, err
	}
	return taskv1.NewWorktreeServiceClient(conn), nil
}

// assign gives a delegation a worktree named after its task, and the child a workspace
// root in it.
func (at *worktreeSite) assign(d *agentv1.Delegation, child *agentv1.Agent) {
	wt := proto.CloneOf(at.worktree)
	wt.State = taskv1.WorktreeState_WORKTREE_STATE_PREPARING
	wt.Path, wt.Branch = path.Join(at.directory, d.GetTaskId()), "quartet/"+d.GetTaskId()
	d.Worktree = wt
	child.WorkspaceMode, child.WorkspaceRoot = agentv1.WorkspaceMode_WORKSPACE_MODE_WORKTREE,
		path.Join(wt.GetPath(), at.subdirectory)
}

// makeWorktree makes the worktree of a child that does not exist yet, and records that it is
// ready. failed says why there will be no worktree, and so no child; it is empty otherwise. again
// is true after an error other than the refusal WORKTREE_FAILED, such as that of a worker that
// cannot be reached; once the delegation is older than makeTimeout, failed is set instead.
func (s *Service) makeWorktree(ctx context.Context, parent plane.Key, d *state.Delegation) (failed string, again bool,
	err error,
) {
	plane, err := s.worktrees()
	if err != nil {
		return "", false, err
	}
	r, err := plane.MakeWorktree(ctx, &taskv1.MakeWorktreeRequest{Worktree: d.Record.GetWorktree()})
	if err != nil {
		f := fault.From(err)
		if f.Reason() != fault.WorktreeFailed && s.deps.Clock.Now().Sub(d.Record.GetCreatedAt().AsTime()) <
			makeTimeout {
			return "", true, nil
		}
		return "spawn_agent_failed: " + f.Message(), false, nil
	}
	return "", false, s.commit(ctx, parent, "NoteWorktree", func(a *state.Agent, _ journal.Env) []*journal.Event {
		return a.WorktreeReady(d.Record.GetDelegationId(), r.GetWorktree())
	})
}

// clearWorktree is the last step before a delegation is completed: it removes the worktree if
// nothing was changed in it. It returns the worktree as removed or kept, or nil if the delegation
// has none or is not open. again is true while commands of the child run or the worker cannot be
// reached, for at most ClearTimeout after since, which is when the end began; then the worktree
// counts as kept. It may be repeated after a crash.
func (s *Service) clearWorktree(ctx context.Context, k plane.Key, d *state.Delegation, since time.Time) (
	wt *taskv1.Worktree, again bool, err error,
) {
	if d == nil || !state.IsOpen(d.Record) || d.Record.GetWorktree() == nil {
		return nil, false, nil
	}
	over := s.deps.Clock.Now().Sub(since) >= ClearTimeout
	kept := func(reason string) (*taskv1.Worktree, bool, error) {
		wt := proto.CloneOf(d.Record.GetWorktree())
		wt.State, wt.Reason = taskv1.WorktreeState_WORKTREE_STATE_KEPT, reason
		return wt, false, nil
	}
	tasks, err := s.tasks()
	if err != nil {
		return nil, false, err
	}
	r, err := tasks.ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: k.ID, PageSize: 1})
	switch {
	case err != nil && fault.From(err).Code() != codes.NotFound: // NOT_FOUND: of a child that was never made
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
	done, err := plane.RemoveWorktree(ctx, &taskv1.RemoveWorktreeRequest{Worktree: d.Record.GetWorktree()})
	switch {
	case err == nil:
		return done.GetWorktree(), false, nil
	case !over:
		return nil, true, nil
	}
	return kept(fault.From(err).Message())
}

// awaitWorktree waits until the child exists, which is not created before its worktree is ready. It also returns when
// the delegation is not open any more, so that there will be no child; after an error of reading; when ctx ends; and
// after readyTimeout.
func (s *Service) awaitWorktree(ctx context.Context, parent plane.Key, delegationID string) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for pacer := retry.New(time.Millisecond, 20*time.Millisecond); ; {
		d, _, err := s.delegationOf(ctx, parent, delegationID)
		if err != nil || d == nil || !state.IsOpen(d.Record) {
			return
		}
		if c, err := s.childStatus(ctx, plane.Key{Namespace: parent.Namespace, ID: d.Record.GetChildAgentId()}); err !=
			nil || c.Record != nil {
			return
		}
		if pacer.Wait(ctx) != nil {
			return
		}
	}
}
