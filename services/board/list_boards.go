package board

import (
	"context"
	"slices"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// ListBoards reads boards without their steps, the active ones in the order of creation and
// then, if the request asks for them, the ended ones, the latest end first (S2-062 to
// S2-072).
func (s *Service) ListBoards(ctx context.Context, req *boardv1.ListBoardsRequest) (*boardv1.ListBoardsResponse, error) {
	if err := s.operate(ctx, "board_list", req.GetSessionId()); err != nil {
		return nil, err
	}
	limit, err := checkPage(req.GetLimit(), req.GetOffset(), 50)
	if err != nil {
		return nil, err
	}
	ended := req.GetIncludeTerminal()
	for _, st := range req.GetStatuses() {
		if st == 0 {
			return nil, fault.Invalid("statuses", st.String(), "must be statuses of boards")
		}
		ended = ended || model.Ended(st)
	}
	k := sessionKey(ctx, req.GetSessionId())
	if err := s.leases.ExpireSession(ctx, k); err != nil {
		return nil, err
	}
	out, _, err := journal.View(ctx, s.engine.For(k.Namespace, k.ID),
		func(st *model.State) (*boardv1.ListBoardsResponse, error) {
			out := &boardv1.ListBoardsResponse{}
			se := st.Sessions[k]
			if se == nil {
				return out, nil
			}
			n := 0
			add := func(b *model.Board) {
				if len(req.GetStatuses()) > 0 && !slices.Contains(req.GetStatuses(), b.Status) {
					return
				}
				n++
				if n > int(req.GetOffset()) && len(out.Boards) < limit {
					out.Boards = append(out.Boards, b.Overview())
				}
			}
			for _, b := range se.Order {
				add(b)
			}
			if ended {
				for _, b := range slices.Backward(se.Ended) { // latest end first
					add(b)
				}
			}
			out.Total = int32(n & (1<<31 - 1))
			out.Truncated = n > int(req.GetOffset())+len(out.Boards)
			return out, nil
		})
	return out, err
}

// checkPage validates a limit and an offset, and returns the limit, which is def if
// none is given.
func checkPage(limit, offset int32, def int) (int, error) {
	const maxLimit = 500
	switch {
	case limit < 0 || limit > maxLimit:
		return 0, fault.LimitExceeded.Newf("limit is %d; it must be 0 to %d", limit, maxLimit).
			WithField("limit", "must be 0 to 500")
	case offset < 0:
		return 0, fault.InvalidArgument.Newf("offset is %d; it must be at least 0", offset).
			WithField("offset", "must be at least 0")
	case limit == 0:
		return def, nil
	}
	return int(limit), nil
}
