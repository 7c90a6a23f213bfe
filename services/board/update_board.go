package board

import (
	"context"
	"strconv"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/rpc"
)

// UpdateBoard applies a patch, all of it or nothing (S2-309 to S2-353, SPEC B4).
func (s *Service) UpdateBoard(ctx context.Context, req *boardv1.UpdateBoardRequest) (*boardv1.UpdateBoardResponse, error) {
	if err := fault.First(
		s.maySteer(ctx, req),
		fault.RequestID(req.GetRequestId()),
		fault.Name("board_id", req.GetBoardId()),
		checkOperations(req.GetOperations()),
	); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	out, err := s.change(ctx, change{
		method: "UpdateBoard", k: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req,
		decide: func(_ *State, b *board, _ journal.Env) ([]*journal.Event, error) {
			if err := b.changeable(); err != nil {
				return nil, err
			}
			if req.ExpectedRevision != nil && req.GetExpectedRevision() != b.lines {
				return nil, fault.RevisionConflict.Newf("board %q has revision %d, not %d; read it again", b.id, b.lines, req.GetExpectedRevision()).
					With("revision", strconv.FormatInt(b.lines, 10))
			}
			return patched(b, req.GetOperations())
		},
	})
	if err != nil {
		return nil, err
	}
	b, err := view(ctx, s, k, req.GetBoardId(), "", func(_ *State, b *board) (*boardv1.Board, error) { return b.named(), nil })
	if err != nil {
		return nil, err
	}
	return &boardv1.UpdateBoardResponse{Board: b, EventIds: out.ids, EventsWritten: out.n}, nil
}

// maySteer lets an operator block and reopen a board, and no more. A worker
// that would change what a board says is refused as such (S2-460).
func (s *Service) maySteer(ctx context.Context, req *boardv1.UpdateBoardRequest) error {
	switch rpc.ActorFrom(ctx).Role {
	case rpc.RoleOperator:
		for _, op := range req.GetOperations() {
			if op.GetOp() != opBlockBoard && op.GetOp() != opReopenBoard {
				return fault.PermissionDenied.New("an operator may block and reopen a board; what it says is its orchestrator's")
			}
		}
		return fault.Name("session_id", req.GetSessionId())
	case rpc.RoleWorker:
		return fault.PermissionDenied.New("workers do not change boards, only the state of the step they hold; UpdateStep does that")
	}
	return s.orchestrate(ctx, "agent.task_update", req.GetSessionId())
}

// patched is the rule of UpdateBoard.
func patched(b *board, ops []*boardv1.Operation) ([]*journal.Event, error) {
	d := newDraft(b)
	for i, op := range ops {
		if err := d.run(i, op); err != nil {
			return nil, err
		}
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	if d.steps > len(b.steps) {
		if err := fits(b.key, b.id, d.steps, d.ids); err != nil {
			return nil, err
		}
	}
	return d.events(ops), nil
}
