package board

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
	"quartet/services/board/patch"
)

// OpenStandingDispatch lets the workers of a pool claim steps of a board (SPEC B10).
func (s *Service) OpenStandingDispatch(ctx context.Context, req *boardv1.OpenStandingDispatchRequest) (
	*boardv1.OpenStandingDispatchResponse, error,
) {
	allowed, err := checkAllowed(req.GetAllowedStepIds(), maxAllowed)
	if err := fault.First(
		s.orchestrate(ctx, "board_open_dispatch", req.GetSessionId()),
		fault.RequestID(req.GetRequestId()), fault.Name("board_id", req.GetBoardId()),
		patch.OptionalName("worker_pool_id", req.GetWorkerPoolId()), err,
		fault.TextBytes("instruction", req.GetInstruction(), fault.MaxFreeTextBytes, false),
	); err != nil {
		return nil, err
	}
	if n := req.GetMaxParallel(); n < 0 || n > maxParallel {
		return nil, fault.LimitExceeded.Newf("max_parallel is %d; it must be 1 to %d", n, maxParallel).
			WithField("max_parallel", "must be 1 to 10000")
	}
	limit, err := runTime("step_timeout", req.GetStepTimeout())
	if err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	out, err := s.do(ctx, change{
		method: "OpenStandingDispatch", session: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req,
		mayBeEnded: true,
		decide: func(_ *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error) {
			switch {
			case !b.Dispatchable():
				return nil, model.NotDispatchable(b)
			case len(b.Dispatches) >= maxDispatches:
				return nil,
					fault.LimitExceeded.Newf("board %q has %d open dispatches, which is the most; close one first",
						b.ID, len(b.Dispatches))
			}
			for _, id := range allowed {
				if b.Steps[id] == nil {
					return nil, model.NoStep(b, id)
				}
			}
			return []*journal.Event{b.NewEvent("", &boardv1.StandingDispatchOpened{Dispatch: &boardv1.StandingDispatch{
				DispatchId: env.NewID("dsp_"), SessionId: k.ID, BoardId: b.ID,
				WorkerPoolId: cmp.Or(req.GetWorkerPoolId(), b.DefaultPool),
				MaxParallel:  cmp.Or(req.GetMaxParallel(), defaultParallel), AllowedStepIds: allowed,
				Instruction: req.GetInstruction(),
				Open:        true, OpenedAt: timestamppb.New(env.Now), StepTimeout: durationpb.New(limit),
			}})}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	if p, ok := journal.Find[*boardv1.StandingDispatchOpened](out.events); ok {
		return &boardv1.OpenStandingDispatchResponse{Dispatch: p.GetDispatch()}, nil
	}
	return nil, fault.InternalError.New("a standing dispatch was opened without an event")
}

// CloseStandingDispatch closes a standing dispatch. Its runs continue. Closing one that
// is not open, or never was, changes nothing and is no error.
func (s *Service) CloseStandingDispatch(ctx context.Context, req *boardv1.CloseStandingDispatchRequest) (
	*boardv1.CloseStandingDispatchResponse, error,
) {
	if err := fault.First(
		s.operate(ctx, "board_close_dispatch", req.GetSessionId()),
		fault.RequestID(req.GetRequestId()), fault.Name("board_id", req.GetBoardId()),
		fault.ID("dispatch_id", req.GetDispatchId(), "dsp_"),
	); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	resp := &boardv1.CloseStandingDispatchResponse{Dispatch: &boardv1.StandingDispatch{
		DispatchId: req.GetDispatchId(), SessionId: k.ID, BoardId: req.GetBoardId(),
	}}
	_, err := s.do(ctx, change{
		frees: true, method: "CloseStandingDispatch", session: k, board: req.GetBoardId(),
		requestID: req.GetRequestId(), args: req, mayBeEnded: true,
		decide: func(_ *model.State, b *model.Board, _ journal.Env) ([]*journal.Event, error) {
			open := slices.ContainsFunc(b.Dispatches, func(d *model.Dispatch) bool {
				return d.Record.GetDispatchId() == req.GetDispatchId()
			})
			if !open {
				return nil, nil
			}
			return []*journal.Event{b.NewEvent("", &boardv1.StandingDispatchClosed{DispatchId: req.GetDispatchId()})},
				nil
		},
	})
	return resp, err
}

// ListStandingDispatches returns the open standing dispatches of a board. Before that it ends the runs of the board
// whose leases are overdue, see viewBoard.
func (s *Service) ListStandingDispatches(ctx context.Context, req *boardv1.ListStandingDispatchesRequest) (
	*boardv1.ListStandingDispatchesResponse, error,
) {
	if err := fault.First(s.operate(ctx, "board_list_dispatches", req.GetSessionId()),
		fault.Name("board_id", req.GetBoardId())); err != nil {
		return nil, err
	}
	return viewBoard(ctx, s, sessionKey(ctx, req.GetSessionId()), req.GetBoardId(), "",
		func(_ *model.State, b *model.Board) (*boardv1.ListStandingDispatchesResponse, error) {
			return &boardv1.ListStandingDispatchesResponse{Dispatches: b.OpenDispatches()}, nil
		})
}
