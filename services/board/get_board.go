package board

import (
	"context"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
	"quartet/services/board/patch"
)

// GetBoard reads a board with its steps; a run gets only the steps that it may read. The steps of a
// board that has ended are replayed from its WAL (S2-064, S2-065); a run gets none of
// them.
func (s *Service) GetBoard(ctx context.Context, req *boardv1.GetBoardRequest) (*boardv1.GetBoardResponse, error) {
	runID, err := s.reader(ctx, "board_get", req.GetSessionId())
	if err := fault.First(err, fault.Name("board_id", req.GetBoardId()),
		patch.OptionalName("wal_name", req.GetWalName())); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	var endedKey model.BoardKey
	b, err := viewBoard(ctx, s, k, req.GetBoardId(), req.GetWalName(),
		func(st *model.State, b *model.Board) (*boardv1.Board, error) {
			r, err := st.CallerRun(b, runID)
			if err != nil {
				return nil, err
			}
			if req.GetOmitSteps() {
				return b.WithDiagnostics(), nil
			}
			if model.Ended(b.Status) {
				endedKey = b.Key
				return b.Overview(), nil
			}
			out := b.WithSteps(s.leases.Expiry(k.Namespace))
			if r != nil && r.Allowed != nil {
				out.Steps = r.VisibleSteps(b, s.leases.Expiry(k.Namespace))
			}
			return out, nil
		})
	if err != nil {
		return nil, err
	}
	if endedKey.WAL != "" && runID == "" {
		replayed, err := s.replayEnded(ctx, endedKey)
		if err != nil {
			return nil, err
		}
		b = replayed.WithSteps(nil)
	}
	return &boardv1.GetBoardResponse{Board: b}, nil
}
