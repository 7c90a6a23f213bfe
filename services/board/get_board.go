package board

import (
	"context"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// GetBoard reads a board with its steps. One that has ended is replayed from
// its WAL, for this reader alone (S2-064, S2-065).
func (s *Service) GetBoard(ctx context.Context, req *boardv1.GetBoardRequest) (*boardv1.GetBoardResponse, error) {
	runID, err := s.reader(ctx, "agent.task_get", req.GetSessionId())
	if err := fault.First(err, fault.Name("board_id", req.GetBoardId()), optionalName("wal_name", req.GetWalName())); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	var gone boardKey
	b, err := view(ctx, s, k, req.GetBoardId(), req.GetWalName(), func(st *State, b *board) (*boardv1.Board, error) {
		r, err := st.seen(b, runID)
		if err != nil {
			return nil, err
		}
		if req.GetOmitSteps() {
			return b.named(), nil
		}
		if terminal(b.status) {
			gone = b.key
			return b.summarized(), nil
		}
		out := b.whole()
		if r != nil && r.allowed != nil {
			out.Steps = r.visible(b)
		}
		return out, nil
	})
	if err != nil {
		return nil, err
	}
	if gone.wal != "" && runID == "" {
		replayed, err := s.replayed(ctx, gone)
		if err != nil {
			return nil, err
		}
		b = replayed.whole()
	}
	return &boardv1.GetBoardResponse{Board: b}, nil
}

// visible are the steps that a run with a scope may see: those and what they
// depend on, for its results (SPEC B11).
func (r *run) visible(b *board) []*boardv1.Step {
	var out []*boardv1.Step
	for _, s := range b.order {
		if s != nil && r.sees(s) {
			out = append(out, b.shown(s))
		}
	}
	return out
}

func (r *run) sees(s *step) bool {
	if r.allowed == nil || r.allowed[s.id()] {
		return true
	}
	for _, k := range s.kids {
		if r.allowed[k.id()] {
			return true
		}
	}
	return false
}
