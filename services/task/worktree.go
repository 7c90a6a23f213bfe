package task

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/rpc"
	"quartet/services/task/model"
	"quartet/services/task/rules"
)

// orderTerm bounds how long an order about a worktree waits for its report. The
// worker goes on with it; who asks again finds what came of it.
const orderTerm = 10 * time.Second

// errands are the orders about worktrees whose reports are waited for. An order
// is not kept anywhere else: it may be given again, and its report lost.
type errands struct {
	mu      sync.Mutex
	waiting map[string]chan *taskv1.WorktreeReport
}

func (e *errands) add(orderID string) (report <-chan *taskv1.WorktreeReport, forget func()) {
	c := make(chan *taskv1.WorktreeReport, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting == nil {
		e.waiting = map[string]chan *taskv1.WorktreeReport{}
	}
	e.waiting[orderID] = c
	return c, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.waiting, orderID)
	}
}

// tell hands a report to who waits for it, if somebody still does.
func (e *errands) tell(r *taskv1.WorktreeReport) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.waiting[r.GetOrderId()]; c != nil {
		delete(e.waiting, r.GetOrderId())
		c <- r
	}
}

// order has one worker do something about a worktree and waits for its report.
// NOT_READY: the worker is not connected, or went, or takes its time.
func (s *Service) order(ctx context.Context, worker model.WorkerKey, o *taskv1.WorktreeOrder) (*taskv1.WorktreeReport, error) {
	se := s.floor.find(worker)
	if se == nil {
		return nil, fault.NotReady.Newf("worker %s is not connected", worker.ID).With("worker_id", worker.ID)
	}
	o.OrderId = s.deps.IDs.New("ord_")
	report, forget := s.errands.add(o.GetOrderId())
	defer forget()
	se.send(&taskv1.ConnectResponse{Message: &taskv1.ConnectResponse_Worktree{Worktree: o}})
	term := time.NewTimer(orderTerm) // a limit for people, not a fact of the plane
	defer term.Stop()
	select {
	case r := <-report:
		return r, nil
	case <-se.ctx.Done():
		return nil, fault.NotReady.Newf("worker %s went before it reported", worker.ID).With("worker_id", worker.ID)
	case <-term.C:
		return nil, fault.NotReady.Newf("worker %s has not reported within %s; ask again", worker.ID, orderTerm).With("worker_id", worker.ID)
	case <-ctx.Done():
		return nil, fault.From(ctx.Err())
	case <-s.quit:
		return nil, fault.NotReady.New("the task service is stopping; ask again")
	}
}

// admitService: orders about worktrees are the agent plane's to give.
func admitService(ctx context.Context) (journal.Actor, error) {
	return journal.Actor(rpc.ActorFrom(ctx)), rpc.RequireRole(ctx, rpc.RoleService)
}

// PlanWorktree asks the workers which of them holds a git work tree at a
// directory (SPEC T9).
func (s *Service) PlanWorktree(ctx context.Context, req *taskv1.PlanWorktreeRequest) (*taskv1.PlanWorktreeResponse, error) {
	actor, err := admitService(ctx)
	if err != nil {
		return nil, err
	}
	if err := fault.TextBytes("workspace_root", req.GetWorkspaceRoot(), rules.MaxWorkdirBytes, false); err != nil {
		return nil, err
	}
	workers := s.floor.foresters(actor.Namespace)
	if req.GetWorkerId() != "" {
		workers = []model.WorkerKey{model.WorkerOf(actor.Namespace, req.GetWorkerId(), req.GetSharedWorker())}
	}
	if len(workers) == 0 {
		return nil, fault.NotReady.New("no worker is connected that could make a worktree; start one, or spawn with workspace_mode inherit")
	}
	type said struct {
		report *taskv1.WorktreeReport
		err    error
	}
	answers := make([]said, len(workers))
	var asking sync.WaitGroup
	for i, w := range workers {
		asking.Go(func() {
			answers[i].report, answers[i].err = s.order(ctx, w, &taskv1.WorktreeOrder{
				Verb: taskv1.WorktreeVerb_WORKTREE_VERB_PLAN, WorkspaceRoot: req.GetWorkspaceRoot(),
			})
		})
	}
	asking.Wait()
	var failures []string
	var silent error
	for i, a := range answers {
		switch {
		case a.err != nil:
			silent = a.err
		case a.report.GetFailure() != "":
			failures = append(failures, a.report.GetFailure())
		default:
			wt := proto.CloneOf(a.report.GetWorktree())
			wt.State, wt.WorkerId, wt.SharedWorker = taskv1.WorktreeState_WORKTREE_STATE_PREPARING, workers[i].ID, workers[i].Namespace == ""
			return &taskv1.PlanWorktreeResponse{Worktree: wt, Directory: a.report.GetDirectory(), Subdirectory: a.report.GetSubdirectory()}, nil
		}
	}
	if silent != nil {
		return nil, silent // that one might hold it
	}
	return nil, fault.NotAWorkTree.Newf("no worktree can be made of the workspace root %q: %s", req.GetWorkspaceRoot(), strings.Join(failures, "; ")).
		With("workspace_root", req.GetWorkspaceRoot())
}

// MakeWorktree has a worktree made by its worker.
func (s *Service) MakeWorktree(ctx context.Context, req *taskv1.MakeWorktreeRequest) (*taskv1.MakeWorktreeResponse, error) {
	r, err := s.about(ctx, taskv1.WorktreeVerb_WORKTREE_VERB_MAKE, req.GetWorktree())
	if err != nil {
		return nil, err
	}
	if r.GetFailure() != "" {
		return nil, fault.WorktreeFailed.Newf("the worktree %s could not be made: %s", req.GetWorktree().GetPath(), r.GetFailure()).With("path", req.GetWorktree().GetPath())
	}
	return &taskv1.MakeWorktreeResponse{Worktree: r.GetWorktree()}, nil
}

// RemoveWorktree has a worktree removed by its worker, if nothing was changed in it.
func (s *Service) RemoveWorktree(ctx context.Context, req *taskv1.RemoveWorktreeRequest) (*taskv1.RemoveWorktreeResponse, error) {
	r, err := s.about(ctx, taskv1.WorktreeVerb_WORKTREE_VERB_REMOVE, req.GetWorktree())
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

func (s *Service) about(ctx context.Context, verb taskv1.WorktreeVerb, wt *taskv1.Worktree) (*taskv1.WorktreeReport, error) {
	actor, err := admitService(ctx)
	if err != nil {
		return nil, err
	}
	if err := fault.Name("worktree.worker_id", wt.GetWorkerId()); err != nil {
		return nil, err
	}
	return s.order(ctx, model.WorkerOf(actor.Namespace, wt.GetWorkerId(), wt.GetSharedWorker()), &taskv1.WorktreeOrder{Verb: verb, Worktree: wt})
}

// foresters are the connected workers that make worktrees for a namespace, in
// order of their names.
func (f *floor) foresters(ns string) []model.WorkerKey {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []model.WorkerKey
	for key, se := range f.sessions {
		if se.ready && se.forester && (key.Namespace == "" || key.Namespace == ns) {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(a, b model.WorkerKey) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Namespace, b.Namespace))
	})
	return out
}
