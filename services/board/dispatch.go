package board

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// Limits of runs.
const (
	// MaxWait is how long a call waits for a run's end.
	MaxWait           = 55 * time.Second
	defaultRunTime    = time.Hour
	maxRunTime        = 24 * time.Hour
	maxDispatches     = 100 // open ones of a board
	maxRunsOfBoard    = 20_000
	defaultParallel   = 1000
	maxParallel       = 10_000
	maxAllowedOfRun   = 1000
	maxAllowedTools   = 200
	maxAllowedToolLen = 128
)

// DispatchWorker starts one run on a worker that is free (SPEC B10).
func (s *Service) DispatchWorker(ctx context.Context, req *boardv1.DispatchWorkerRequest) (*boardv1.DispatchWorkerResponse, error) {
	allowed, err := checkAllowed(req.GetAllowedStepIds(), maxAllowedOfRun)
	if err := fault.First(
		s.orchestrate(ctx, "agent.dispatch_worker", req.GetSessionId()),
		fault.RequestID(req.GetRequestId()), fault.Name("board_id", req.GetBoardId()),
		optionalName("worker_pool_id", req.GetWorkerPoolId()), optionalName("worker_id", req.GetWorkerId()), err,
		fault.TextBytes("instruction", req.GetInstruction(), fault.MaxFreeTextBytes, false),
		fault.TextBytes("context", req.GetContext(), fault.MaxFreeTextBytes, false),
		checkTools(req.GetAllowedTools()),
	); err != nil {
		return nil, err
	}
	limit, err := span("timeout", req.GetTimeout(), defaultRunTime, maxRunTime)
	if err != nil {
		return nil, err
	}
	if req.GetTimeout() != nil && limit < time.Second {
		return nil, fault.Invalid("timeout", limit.String(), "must be at least 1s")
	}
	wait, err := span("wait", req.GetWait(), 0, MaxWait)
	if err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	pool, err := view(ctx, s, k, req.GetBoardId(), "", func(_ *State, b *board) (string, error) {
		return cmp.Or(req.GetWorkerPoolId(), b.pool), nil
	})
	if err != nil {
		return nil, err
	}
	place, busy := s.floor.reserve(k.namespace, pool, req.GetWorkerId())
	out, err := s.change(ctx, change{
		method: "DispatchWorker", k: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req, ended: true,
		decide: func(_ *State, b *board, env journal.Env) ([]*journal.Event, error) {
			switch {
			case !b.dispatchable():
				return nil, notDispatchable(b)
			case busy != nil: // for the rule to say: a repetition has its first answer
				return nil, busy
			case len(b.runs) >= maxRunsOfBoard:
				return nil, fault.WorkerPoolBusy.Newf("board %q has %d runs under way; that is the most", b.id, len(b.runs))
			}
			for _, id := range allowed {
				if b.steps[id] == nil {
					return nil, noStep(b, id)
				}
			}
			return []*journal.Event{b.event("", &boardv1.WorkerDispatched{Run: &boardv1.WorkerRun{
				RunId: env.NewID("run_"), SessionId: k.id, BoardId: b.id, WorkerPoolId: pool, WorkerId: place.worker,
				AllowedStepIds: allowed, Instruction: req.GetInstruction(), Context: req.GetContext(), AllowedTools: req.GetAllowedTools(),
				Status:       boardv1.RunStatus_RUN_STATUS_RUNNING,
				DispatchedAt: timestamppb.New(env.Now), DeadlineAt: timestamppb.New(env.Now.Add(limit)),
			}})}, nil
		},
	})
	if err != nil || len(out.events) == 0 {
		s.floor.giveBack(place)
		return nil, err
	}
	p, ok := out.events[0].Payload.(*boardv1.WorkerDispatched)
	if !ok {
		s.floor.giveBack(place)
		return nil, fmt.Errorf("board: a dispatch wrote %s", out.events[0].Type)
	}
	if p.GetRun().GetWorkerId() != place.worker || !s.floor.hand(place, p.GetRun()) {
		s.floor.giveBack(place) // it was dispatched by an earlier call
	}
	run, pending, err := s.awaitRun(ctx, k, req.GetBoardId(), p.GetRun().GetRunId(), wait)
	return &boardv1.DispatchWorkerResponse{Run: run, Pending: pending}, err
}

func checkTools(tools []string) error {
	if err := fault.Entries("allowed_tools", len(tools), maxAllowedTools); err != nil {
		return err
	}
	for i, t := range tools {
		if err := fault.Text(fmt.Sprintf("allowed_tools[%d]", i), t, maxAllowedToolLen, true); err != nil {
			return err
		}
	}
	return nil
}

func span(field string, d *durationpb.Duration, def, most time.Duration) (time.Duration, error) {
	if d == nil {
		return def, nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() < 0 || d.AsDuration() > most {
		return 0, fault.LimitExceeded.Newf("%s is %s; it must be 0s to %s", field, d.AsDuration(), most).WithField(field, "must be 0s to "+most.String())
	}
	return d.AsDuration(), nil
}

// GetWorkerRun reads a run, and waits for its end on request.
func (s *Service) GetWorkerRun(ctx context.Context, req *boardv1.GetWorkerRunRequest) (*boardv1.GetWorkerRunResponse, error) {
	if err := fault.First(
		s.operate(ctx, "agent.dispatch_worker", req.GetSessionId()),
		fault.Name("board_id", req.GetBoardId()), fault.ID("run_id", req.GetRunId(), "run_"),
	); err != nil {
		return nil, err
	}
	wait, err := span("wait", req.GetWait(), 0, MaxWait)
	if err != nil {
		return nil, err
	}
	run, pending, err := s.awaitRun(ctx, sessionKey(ctx, req.GetSessionId()), req.GetBoardId(), req.GetRunId(), wait)
	if err != nil {
		return nil, err
	}
	return &boardv1.GetWorkerRunResponse{Run: run, Pending: pending}, nil
}

// awaitRun reads a run, once it has ended or the wait is over.
func (s *Service) awaitRun(ctx context.Context, k key, boardID, runID string, wait time.Duration) (*boardv1.WorkerRun, bool, error) {
	timer := s.deps.Clock.TimerAt(s.deps.Clock.Now().Add(wait))
	defer timer.Stop()
	for {
		changed := s.watches.on(watchKey{k.namespace, k.id, boardID})
		run, err := journalView(ctx, s, k, func(st *State) (*boardv1.WorkerRun, error) { return st.run(k, boardID, runID) })
		if err != nil {
			return nil, false, err
		}
		pending := run.GetStatus() == boardv1.RunStatus_RUN_STATUS_RUNNING
		if !pending || wait == 0 {
			return run, pending, nil
		}
		select {
		case <-changed:
		case <-timer.C():
			return run, true, nil
		case <-s.ctx.Done():
			return run, true, nil
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// run is a run as readers see it.
func (s *State) run(k key, boardID, runID string) (*boardv1.WorkerRun, error) {
	r := s.runs[key{k.namespace, runID}]
	if r == nil || r.board.key.session != k.id || r.board.id != boardID {
		return nil, fault.NotFound.Newf("board %q has no run %q; long ended ones stand in the events only", boardID, runID).With("run_id", runID)
	}
	return r.shown(), nil
}

func (r *run) shown() *boardv1.WorkerRun {
	if !r.live() || r.step == nil {
		return r.rec
	}
	n := copyRun(r.rec)
	n.StepStatus = r.rec.GetStepStatus()
	if r.holds() {
		n.StepStatus = r.step.rec.GetStatus()
	}
	return n
}

// ListWorkerRuns reads a board's runs.
func (s *Service) ListWorkerRuns(ctx context.Context, req *boardv1.ListWorkerRunsRequest) (*boardv1.ListWorkerRunsResponse, error) {
	if err := fault.First(s.operate(ctx, "agent.dispatch_worker", req.GetSessionId()), fault.Name("board_id", req.GetBoardId())); err != nil {
		return nil, err
	}
	limit, err := bounded(req.GetLimit(), 0, 50)
	if err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	return view(ctx, s, k, req.GetBoardId(), "", func(st *State, b *board) (*boardv1.ListWorkerRunsResponse, error) {
		out := &boardv1.ListWorkerRunsResponse{}
		out.Runs, out.Truncated = st.runsOf(b, limit, req.GetRunningOnly())
		return out, nil
	})
}

// CancelWorkerRun ends a run (S2-219, S2-418).
func (s *Service) CancelWorkerRun(ctx context.Context, req *boardv1.CancelWorkerRunRequest) (*boardv1.CancelWorkerRunResponse, error) {
	if err := fault.First(
		s.operate(ctx, "agent.cancel_worker_run", req.GetSessionId()),
		fault.RequestID(req.GetRequestId()), fault.Name("board_id", req.GetBoardId()), fault.ID("run_id", req.GetRunId(), "run_"),
	); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	_, err := s.change(ctx, change{
		method: "CancelWorkerRun", k: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req, ended: true,
		decide: func(st *State, b *board, env journal.Env) ([]*journal.Event, error) {
			r := st.runs[key{k.namespace, req.GetRunId()}]
			if r == nil || r.board != b {
				_, err := st.run(k, req.GetBoardId(), req.GetRunId())
				return nil, err
			}
			if !r.live() {
				return nil, nil
			}
			f := newFlow(b, env)
			f.finish(r, boardv1.RunStatus_RUN_STATUS_CANCELLED, whyCancelled, &boardv1.WorkerRunEnded{})
			f.settle()
			return f.events, nil
		},
	})
	if err != nil {
		return nil, err
	}
	s.floor.stop(k.namespace, req.GetRunId())
	run, _, err := s.awaitRun(ctx, k, req.GetBoardId(), req.GetRunId(), 0)
	return &boardv1.CancelWorkerRunResponse{Run: run}, err
}

// FinishWorkerRun ends the calling run (S2-415 to S2-421).
func (s *Service) FinishWorkerRun(ctx context.Context, req *boardv1.FinishWorkerRunRequest) (*boardv1.FinishWorkerRunResponse, error) {
	actor, err := runner(ctx, "agent.finish_run")
	if err := fault.First(err, fault.RequestID(req.GetRequestId()), fault.Name("session_id", req.GetSessionId()), fault.Name("board_id", req.GetBoardId()),
		fault.TextBytes("worker_result", req.GetWorkerResult(), fault.MaxFreeTextBytes, false)); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	_, err = s.change(ctx, change{
		method: "FinishWorkerRun", k: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req, ended: true,
		decide: func(st *State, b *board, env journal.Env) ([]*journal.Event, error) {
			r, err := st.seen(b, actor.RunID)
			switch {
			case err != nil:
				return nil, err
			case !r.live() && terminal(b.status) && r.rec.GetWorkerResult() == "" && req.GetWorkerResult() != "":
				// Its board has ended; its own last word is kept (S2-186).
				return []*journal.Event{b.event("", &boardv1.WorkerRunEnded{
					RunId: actor.RunID, Status: r.rec.GetStatus(), WorkerResult: req.GetWorkerResult(), EndReason: r.rec.GetEndReason(),
				})}, nil
			case !r.live():
				return nil, newFlow(b, env).late(r)
			}
			f := newFlow(b, env)
			f.finish(r, boardv1.RunStatus_RUN_STATUS_FINISHED, whyFinished, &boardv1.WorkerRunEnded{
				WorkerResult: req.GetWorkerResult(), NoStepClaimed: r.step == nil,
			})
			f.settle()
			return f.events, nil
		},
	})
	if err != nil {
		return nil, err
	}
	run, _, err := s.awaitRun(ctx, k, req.GetBoardId(), actor.RunID, 0)
	return &boardv1.FinishWorkerRunResponse{Run: run}, err
}

// RenewWorkerRun begins the calling run's lease anew. It writes nothing.
func (s *Service) RenewWorkerRun(ctx context.Context, req *boardv1.RenewWorkerRunRequest) (*boardv1.RenewWorkerRunResponse, error) {
	actor, err := runner(ctx, "agent.renew_run")
	if err := fault.First(err, fault.Name("session_id", req.GetSessionId()), fault.Name("board_id", req.GetBoardId())); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	return view(ctx, s, k, req.GetBoardId(), "", func(st *State, b *board) (*boardv1.RenewWorkerRunResponse, error) {
		r, err := st.seen(b, actor.RunID)
		if err != nil {
			return nil, err
		}
		if !r.live() {
			return nil, newFlow(b, journal.Env{}).late(r)
		}
		until := s.deps.Clock.Now().Add(s.cfg.LeaseTerm)
		r.lease(until)
		return &boardv1.RenewWorkerRunResponse{LeaseExpiresAt: timestamppb.New(until), Cancelling: r.rec.GetCancelling()}, nil
	})
}
