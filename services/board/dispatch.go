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
	"quartet/pkg/plane"
	"quartet/services/board/model"
	"quartet/services/board/patch"
	"quartet/services/board/rules"
)

// Limits of runs.
const (
	// MaxWait bounds how long a call waits for a run to end.
	MaxWait           = 55 * time.Second
	maxRunTime        = 24 * time.Hour
	maxDispatches     = 100    // standing dispatches of a board that are open
	maxRunsOfBoard    = 20_000 // runs of a board in progress
	defaultParallel   = 1000   // runs of a standing dispatch at a time
	maxParallel       = 10_000
	maxAllowedOfRun   = 1000 // steps that a run is limited to
	maxAllowedTools   = 200
	maxAllowedToolLen = 128 // characters
)

// DispatchWorker starts a run on a connected worker that has room (SPEC B10) and, if requested, waits
// for it to end.
func (s *Service) DispatchWorker(ctx context.Context, req *boardv1.DispatchWorkerRequest) (
	*boardv1.DispatchWorkerResponse, error,
) {
	allowed, err := checkAllowed(req.GetAllowedStepIds(), maxAllowedOfRun)
	if err := fault.First(
		s.orchestrate(ctx, "board_dispatch_worker", req.GetSessionId()),
		fault.RequestID(req.GetRequestId()), fault.Name("board_id", req.GetBoardId()),
		patch.OptionalName("worker_pool_id", req.GetWorkerPoolId()), patch.OptionalName("worker_id", req.GetWorkerId()),
		err,
		fault.TextBytes("instruction", req.GetInstruction(), fault.MaxFreeTextBytes, false),
		fault.TextBytes("context", req.GetContext(), fault.MaxFreeTextBytes, false),
		checkTools(req.GetAllowedTools()),
	); err != nil {
		return nil, err
	}
	limit, err := runTime("timeout", req.GetTimeout())
	if err != nil {
		return nil, err
	}
	wait, err := span("wait", req.GetWait(), 0, MaxWait)
	if err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	pool, err := viewBoard(ctx, s, k, req.GetBoardId(), "", func(_ *model.State, b *model.Board) (string, error) {
		return cmp.Or(req.GetWorkerPoolId(), b.Whole().DefaultPool), nil
	})
	if err != nil {
		return nil, err
	}
	reservation, busy := s.workers.Reserve(k.Namespace, pool, req.GetWorkerId())
	workerID := ""
	if busy == nil {
		workerID = reservation.Session.Key.ID
	}
	out, err := s.do(ctx, change{
		method: "DispatchWorker", session: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req,
		mayBeEnded: true,
		decide: func(_ *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error) {
			switch {
			case !b.Dispatchable():
				return nil, model.NotDispatchable(b)
			case busy != nil: // the rule returns it, so that a repeated request gets its first response
				return nil, busy
			case len(b.Runs) >= maxRunsOfBoard:
				return nil, fault.WorkerPoolBusy.Newf("board %q has %d runs in progress, which is the most", b.ID,
					len(b.Runs))
			}
			for _, id := range allowed {
				if b.Steps[id] == nil {
					return nil, model.NoStep(b, id)
				}
			}
			return []*journal.Event{b.NewEvent("", &boardv1.WorkerDispatched{Run: &boardv1.WorkerRun{
				RunId: env.NewID("run_"), SessionId: k.ID, BoardId: b.ID, WorkerPoolId: pool, WorkerId: workerID,
				AllowedStepIds: allowed, Instruction: req.GetInstruction(), Context: req.GetContext(),
				AllowedTools: req.GetAllowedTools(),
				Status:       boardv1.RunStatus_RUN_STATUS_RUNNING,
				DispatchedAt: timestamppb.New(env.Now), DeadlineAt: timestamppb.New(env.Now.Add(limit)),
			}})}, nil
		},
	})
	p, dispatched := journal.Find[*boardv1.WorkerDispatched](out.events)
	switch {
	case busy != nil:
	// refused, or a repeated request whose run another worker has
	case err != nil || p.GetRun().GetWorkerId() != workerID:
		reservation.Cancel()
	case out.replayed && !s.inProgress(ctx, k, p.GetRun()):
		reservation.Cancel()
	default:
		s.workers.Begin(reservation, p.GetRun())
	}
	if err != nil {
		return nil, err
	}
	if !dispatched {
		return nil, fault.InternalError.New("a run was dispatched without an event")
	}
	run, pending, err := s.awaitRun(ctx, k, req.GetBoardId(), p.GetRun().GetRunId(), wait)
	return &boardv1.DispatchWorkerResponse{Run: run, Pending: pending}, plane.Stored(err)
}

// inProgress reports whether a run of a session is in progress. It is false if that cannot be read.
func (s *Service) inProgress(ctx context.Context, k model.Key, run *boardv1.WorkerRun) bool {
	now, err := viewSession(ctx, s, k, func(st *model.State) (*boardv1.WorkerRun, error) {
		return st.FindRun(k, run.GetBoardId(), run.GetRunId())
	})
	return err == nil && now.GetStatus() == boardv1.RunStatus_RUN_STATUS_RUNNING
}

// checkTools validates allowed_tools.
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

// span returns an optional duration, or def if it is nil. It returns LIMIT_EXCEEDED for one
// that is not within 0 and most.
func span(field string, d *durationpb.Duration, def, most time.Duration) (time.Duration, error) {
	if d == nil {
		return def, nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() < 0 || d.AsDuration() > most {
		return 0, fault.LimitExceeded.Newf("%s is %s; it must be 0s to %s", field, d.AsDuration(), most).
			WithField(field, "must be 0s to "+most.String())
	}
	return d.AsDuration(), nil
}

// runTime returns how long a run may take: d, or the default if it is nil.
func runTime(field string, d *durationpb.Duration) (time.Duration, error) {
	limit, err := span(field, d, model.DefaultRunTime, maxRunTime)
	if err == nil && limit < time.Second {
		err = fault.Invalid(field, limit.String(), "must be at least 1s")
	}
	return limit, err
}

// GetWorkerRun reads a run and, if requested, waits for it to end.
func (s *Service) GetWorkerRun(ctx context.Context, req *boardv1.GetWorkerRunRequest) (*boardv1.GetWorkerRunResponse,
	error,
) {
	if err := fault.First(
		s.operate(ctx, "board_dispatch_worker", req.GetSessionId()),
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

// awaitRun waits until a run has ended, the wait has passed or the service stops, and
// returns the run. pending reports that the run has not ended. If ctx ends first, it returns
// the error of ctx.
func (s *Service) awaitRun(ctx context.Context, k model.Key, boardID, runID string, wait time.Duration) (
	run *boardv1.WorkerRun, pending bool, err error,
) {
	until := s.deps.Clock.Now().Add(wait)
	timer := s.deps.Clock.TimerAt(until)
	defer timer.Stop()
	changes := s.watches.Subscribe(boardWatch{k.Namespace, k.ID, boardID})
	defer changes.Close()
	for over := false; ; {
		over = over || !s.deps.Clock.Now().Before(until) // then the run is read once more: it may have ended just now
		run, err := viewSession(ctx, s, k, func(st *model.State) (*boardv1.WorkerRun, error) {
			return st.FindRun(k, boardID, runID)
		})
		if err != nil {
			return nil, false, err
		}
		pending := run.GetStatus() == boardv1.RunStatus_RUN_STATUS_RUNNING
		if !pending || over {
			return run, pending, nil
		}
		select {
		case <-changes.C():
		case <-timer.C():
			over = true
		case <-s.watches.Stopped():
			return run, true, nil
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// ListWorkerRuns reads at most limit runs of a board: those in progress, the newest first, and then, unless
// running_only is set, the ended ones that are in memory, the latest end first.
func (s *Service) ListWorkerRuns(ctx context.Context, req *boardv1.ListWorkerRunsRequest) (
	*boardv1.ListWorkerRunsResponse, error,
) {
	if err := fault.First(s.operate(ctx, "board_dispatch_worker", req.GetSessionId()),
		fault.Name("board_id", req.GetBoardId())); err != nil {
		return nil, err
	}
	limit, err := checkPage(req.GetLimit(), 0, 50)
	if err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	return viewBoard(ctx, s, k, req.GetBoardId(), "",
		func(st *model.State, b *model.Board) (*boardv1.ListWorkerRunsResponse, error) {
			out := &boardv1.ListWorkerRunsResponse{}
			out.Runs, out.Truncated = st.RunsOf(b, limit, req.GetRunningOnly())
			return out, nil
		})
}

// CancelWorkerRun ends a run, fails the step that the run holds, and asks its worker to stop. It returns
// a run that has ended as it is (S2-219, S2-418).
func (s *Service) CancelWorkerRun(ctx context.Context, req *boardv1.CancelWorkerRunRequest) (
	*boardv1.CancelWorkerRunResponse, error,
) {
	if err := fault.First(
		s.operate(ctx, "board_cancel_run", req.GetSessionId()),
		fault.RequestID(req.GetRequestId()), fault.Name("board_id", req.GetBoardId()),
		fault.ID("run_id", req.GetRunId(), "run_"),
	); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	_, err := s.do(ctx, change{
		frees: true, method: "CancelWorkerRun", session: k, board: req.GetBoardId(), requestID: req.GetRequestId(),
		args: req, mayBeEnded: true,
		decide: func(st *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error) {
			r := st.Runs[model.Key{Namespace: k.Namespace, ID: req.GetRunId()}]
			if r == nil || r.Board != b {
				_, err := st.FindRun(k, req.GetBoardId(), req.GetRunId())
				return nil, err
			}
			if !r.Running() {
				return nil, nil
			}
			f := rules.NewTransition(b, env)
			f.FinishRun(r, boardv1.RunStatus_RUN_STATUS_CANCELLED, rules.WhyCancelled, &boardv1.WorkerRunEnded{})
			f.FollowUps()
			return f.Events, nil
		},
	})
	if err != nil {
		return nil, err
	}
	run, _, err := s.awaitRun(ctx, k, req.GetBoardId(), req.GetRunId(), 0)
	return &boardv1.CancelWorkerRunResponse{Run: run}, plane.Stored(err)
}

// FinishWorkerRun ends the calling run. A step that the run still holds fails (S2-415 to S2-421).
func (s *Service) FinishWorkerRun(ctx context.Context, req *boardv1.FinishWorkerRunRequest) (
	*boardv1.FinishWorkerRunResponse, error,
) {
	actor, err := runner(ctx, "agent.finish_run")
	if err := fault.First(err, fault.RequestID(req.GetRequestId()), fault.Name("session_id", req.GetSessionId()),
		fault.Name("board_id", req.GetBoardId()),
		fault.TextBytes("worker_result", req.GetWorkerResult(), fault.MaxFreeTextBytes, false)); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	_, err = s.do(ctx, change{
		frees: true, method: "FinishWorkerRun", session: k, board: req.GetBoardId(), requestID: req.GetRequestId(),
		args: req, mayBeEnded: true,
		decide: func(st *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error) {
			r, err := st.CallerRun(b, actor.RunID)
			switch {
			case err != nil:
				return nil, err
			case !r.Running() && model.Ended(b.Status) && r.Record.GetWorkerResult() == "" &&
				req.GetWorkerResult() != "":
				// The run ended with its board; its result is recorded all the same (S2-186).
				return []*journal.Event{b.NewEvent("", &boardv1.WorkerRunEnded{
					RunId: actor.RunID, Status: r.Record.GetStatus(), WorkerResult: req.GetWorkerResult(),
					EndReason: r.Record.GetEndReason(),
				})}, nil
			case !r.Running():
				return nil, rules.NewTransition(b, env).EndedError(r)
			}
			f := rules.NewTransition(b, env)
			f.FinishRun(r, boardv1.RunStatus_RUN_STATUS_FINISHED, rules.WhyFinished, &boardv1.WorkerRunEnded{
				WorkerResult: req.GetWorkerResult(), NoStepClaimed: r.Step == nil,
			})
			f.FollowUps()
			return f.Events, nil
		},
	})
	if err != nil {
		return nil, err
	}
	run, _, err := s.awaitRun(ctx, k, req.GetBoardId(), actor.RunID, 0)
	return &boardv1.FinishWorkerRunResponse{Run: run}, plane.Stored(err)
}

// RenewWorkerRun extends the lease of the calling run to a full term, at most until the run's deadline (SPEC X12).
// The renewal writes nothing to the journal; before it, runs of the board whose leases are overdue are ended.
func (s *Service) RenewWorkerRun(ctx context.Context, req *boardv1.RenewWorkerRunRequest) (
	*boardv1.RenewWorkerRunResponse, error,
) {
	actor, err := runner(ctx, "agent.renew_run")
	if err := fault.First(err, fault.Name("session_id", req.GetSessionId()),
		fault.Name("board_id", req.GetBoardId())); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	resp, err := viewBoard(ctx, s, k, req.GetBoardId(), "",
		func(st *model.State, b *model.Board) (*boardv1.RenewWorkerRunResponse, error) {
			r, err := st.CallerRun(b, actor.RunID)
			if err != nil {
				return nil, err
			}
			if !r.Running() {
				return nil, rules.NewTransition(b, journal.Env{}).EndedError(r)
			}
			return &boardv1.RenewWorkerRunResponse{Cancelling: r.Record.GetCancelling()}, nil
		})
	if err != nil {
		return nil, err
	}
	expires, ok := s.leases.Renew(k.Namespace, actor.RunID)
	if !ok { // it ended just now
		return nil, model.RunEnded(actor.RunID)
	}
	resp.LeaseExpiresAt = timestamppb.New(expires)
	return resp, nil
}
