package board

import (
	"context"
	"strconv"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
	"quartet/services/board/patch"
)

// UpdateBoard applies operations to a board, all of them or none (S2-309 to S2-353, SPEC B4).
func (s *Service) UpdateBoard(ctx context.Context, req *boardv1.UpdateBoardRequest) (*boardv1.UpdateBoardResponse,
	error,
) {
	if err := fault.First(
		s.admitUpdate(ctx, req),
		fault.RequestID(req.GetRequestId()),
		fault.Name("board_id", req.GetBoardId()),
		patch.CheckOperations(req.GetOperations()),
	); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	out, err := s.do(ctx, change{
		method: "UpdateBoard", session: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req,
		decide: func(_ *model.State, b *model.Board, _ journal.Env) ([]*journal.Event, error) {
			if err := b.CheckChangeable(); err != nil {
				return nil, err
			}
			if req.ExpectedRevision != nil && req.GetExpectedRevision() != b.Lines {
				return nil, fault.RevisionConflict.Newf("board %q has revision %d, not %d; read it again", b.ID,
					b.Lines, req.GetExpectedRevision()).
					With("revision", strconv.FormatInt(b.Lines, 10))
			}
			return patch.Decide(b, req.GetOperations())
		},
	})
	if err != nil {
		return nil, err
	}
	b, err := viewBoard(ctx, s, k, req.GetBoardId(), "", func(_ *model.State, b *model.Board) (*boardv1.Board, error) {
		return b.WithDiagnostics(), nil
	})
	if err != nil {
		return nil, plane.Stored(err)
	}
	return &boardv1.UpdateBoardResponse{Board: b, EventIds: out.ids, EventsWritten: out.count}, nil
}

// admitUpdate admits the orchestrator, and operators for blocking and reopening a board
// only. Workers are refused with PERMISSION_DENIED (S2-460).
func (s *Service) admitUpdate(ctx context.Context, req *boardv1.UpdateBoardRequest) error {
	switch rpc.ActorFrom(ctx).Role {
	case rpc.RoleOperator:
		for _, op := range req.GetOperations() {
			if op.GetOp() != model.OpBlockBoard && op.GetOp() != model.OpReopenBoard {
				return fault.PermissionDenied.New("an operator may block and reopen a board; only its orchestrator " +
					"may change its content")
			}
		}
		return fault.Name("session_id", req.GetSessionId())
	case rpc.RoleWorker:
		return fault.PermissionDenied.New("workers do not change boards, only the state of the step they hold; " +
			"UpdateStep does that")
	}
	return s.orchestrate(ctx, "board_update", req.GetSessionId())
}
