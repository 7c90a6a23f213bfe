package task

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/rpc"
	"quartet/services/task/model"
	"quartet/services/task/rules"
)

// PlanWorktree asks the connected workers, or the one that the request names, which of
// them has a git work tree at a directory (SPEC T9). It asks all of them at once; if several
// have one, it takes the worker with the least id. If none has, it returns NOT_A_WORK_TREE if all
// of them reported, and otherwise the error of one that did not.
func (s *Service) PlanWorktree(ctx context.Context, req *taskv1.PlanWorktreeRequest) (*taskv1.PlanWorktreeResponse,
	error,
) {
	namespace := rpc.ActorFrom(ctx).Namespace
	if err := fault.TextBytes("workspace_root", req.GetWorkspaceRoot(), rules.MaxWorkdirBytes, false); err != nil {
		return nil, err
	}
	workers := s.workers.WorktreeWorkers(namespace)
	if req.GetWorkerId() != "" {
		workers = []model.WorkerKey{model.WorkerOf(namespace, req.GetWorkerId(), req.GetSharedWorker())}
	}
	if len(workers) == 0 {
		return nil, fault.NotReady.New("no worker is connected that could make a worktree; start one, or spawn with " +
			"workspace_mode inherit")
	}
	type reply struct {
		report *taskv1.WorktreeReport
		err    error
	}
	replies := make([]reply, len(workers))
	var inflight sync.WaitGroup
	for i, w := range workers {
		inflight.Go(func() {
			replies[i].report, replies[i].err = s.workers.Order(ctx, w, &taskv1.WorktreeOrder{
				Verb: taskv1.WorktreeVerb_WORKTREE_VERB_PLAN, WorkspaceRoot: req.GetWorkspaceRoot(),
				Namespace: namespace,
			})
		})
	}
	inflight.Wait()
	var failures []string
	var noReport error
	for i, r := range replies {
		switch {
		case r.err != nil:
			noReport = r.err
		case r.report.GetFailure() != "":
			failures = append(failures, r.report.GetFailure())
		default:
			wt := proto.CloneOf(r.report.GetWorktree())
			wt.State, wt.WorkerId, wt.SharedWorker = taskv1.WorktreeState_WORKTREE_STATE_PREPARING, workers[i].ID,
				workers[i].Namespace == ""
			return &taskv1.PlanWorktreeResponse{
				Worktree: wt, Directory: r.report.GetDirectory(),
				Subdirectory: r.report.GetSubdirectory(),
			}, nil
		}
	}
	if noReport != nil {
		return nil, noReport // a worker that did not report may have the directory
	}
	return nil, fault.NotAWorkTree.Newf("no worktree can be made of the workspace root %q: %s", req.GetWorkspaceRoot(),
		strings.Join(failures, "; ")).
		With("workspace_root", req.GetWorkspaceRoot())
}

// MakeWorktree orders the worker of a planned worktree to create it, unless it exists, and waits for
// the report. It returns WORKTREE_FAILED if the worker reports a failure.
func (s *Service) MakeWorktree(ctx context.Context, req *taskv1.MakeWorktreeRequest) (*taskv1.MakeWorktreeResponse,
	error,
) {
	r, err := s.orderFor(ctx, taskv1.WorktreeVerb_WORKTREE_VERB_MAKE, req.GetWorktree())
	if err != nil {
		return nil, err
	}
	if r.GetFailure() != "" {
		return nil, fault.WorktreeFailed.Newf("the worktree %s could not be made: %s", req.GetWorktree().GetPath(),
			r.GetFailure()).With("path", req.GetWorktree().GetPath())
	}
	return &taskv1.MakeWorktreeResponse{Worktree: r.GetWorktree()}, nil
}

// RemoveWorktree orders the worker of a worktree to remove it, unless it has changes, and waits for
// the report. The worktree in the response has the state kept if it could not be removed.
func (s *Service) RemoveWorktree(ctx context.Context, req *taskv1.RemoveWorktreeRequest) (
	*taskv1.RemoveWorktreeResponse, error,
) {
	r, err := s.orderFor(ctx, taskv1.WorktreeVerb_WORKTREE_VERB_REMOVE, req.GetWorktree())
	if err != nil {
		return nil, err
	}
	wt := r.GetWorktree()
	if r.GetFailure() != "" {
		wt = proto.CloneOf(req.GetWorktree())
		wt.State, wt.Reason = taskv1.WorktreeState_WORKTREE_STATE_KEPT, r.GetFailure()
	}
	return &taskv1.RemoveWorktreeResponse{Worktree: wt}, nil
}

// orderFor sends the worker of a worktree an order about it and returns its report, which may be of a
// failure. Only services may call it.
func (s *Service) orderFor(ctx context.Context, verb taskv1.WorktreeVerb, wt *taskv1.Worktree) (*taskv1.WorktreeReport,
	error,
) {
	namespace := rpc.ActorFrom(ctx).Namespace
	if err := fault.Name("worktree.worker_id", wt.GetWorkerId()); err != nil {
		return nil, err
	}
	return s.workers.Order(ctx, model.WorkerOf(namespace, wt.GetWorkerId(), wt.GetSharedWorker()),
		&taskv1.WorktreeOrder{Verb: verb, Worktree: wt, Namespace: namespace})
}
