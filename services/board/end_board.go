package board

import (
	"context"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/services/board/model"
	"quartet/services/board/rules"
)

// CompleteBoard ends a board as completed and cancels its optional steps that are pending or ready. It refuses a
// board of which a required step is not completed, or any step is claimed or running (S2-425 to S2-427).
func (s *Service) CompleteBoard(ctx context.Context, req *boardv1.CompleteBoardRequest) (*boardv1.CompleteBoardResponse,
	error,
) {
	if err := fault.First(
		s.mayEnd(ctx, "board_complete", req.GetSessionId(), false),
		fault.RequestID(req.GetRequestId()), fault.Name("board_id", req.GetBoardId()),
		fault.TextBytes("reason", req.GetReason(), fault.MaxFreeTextBytes, false),
	); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	out, err := s.do(ctx, change{
		frees: true, method: "CompleteBoard", session: k, board: req.GetBoardId(), requestID: req.GetRequestId(),
		args: req,
		decide: func(_ *model.State, b *model.Board, _ journal.Env) ([]*journal.Event, error) {
			return rules.DecideComplete(b, req.GetReason())
		},
	})
	if err != nil {
		return nil, err
	}
	b, err := s.changedBoard(ctx, k, req.GetBoardId(), out)
	return &boardv1.CompleteBoardResponse{Board: b, EventIds: out.ids, EventsWritten: out.count}, plane.Stored(err)
}

// FailBoard ends a board as failed. If workers hold steps of it, FailBoard first asks them to stop their runs and
// waits for that, but not longer than CancelWait (S2-428 to S2-436).
func (s *Service) FailBoard(ctx context.Context, req *boardv1.FailBoardRequest) (*boardv1.FailBoardResponse, error) {
	out, err := s.end(ctx, endRequest{
		method: "FailBoard", tool: "board_fail", status: model.BoardFailed,
		session: req.GetSessionId(), board: req.GetBoardId(), requestID: req.GetRequestId(), reason: req.GetReason(),
		args: req,
	})
	if err != nil {
		return nil, err
	}
	return &boardv1.FailBoardResponse{
		Board: out.board, EventIds: out.ids, EventsWritten: out.count,
		TimedOutRunIds: out.timedOut,
	}, nil
}

// CancelBoard ends a board as cancelled. It treats the board's workers as FailBoard does (S2-429 to S2-436).
func (s *Service) CancelBoard(ctx context.Context, req *boardv1.CancelBoardRequest) (*boardv1.CancelBoardResponse,
	error,
) {
	out, err := s.end(ctx, endRequest{
		method: "CancelBoard", tool: "board_cancel", status: model.BoardCancelled,
		session: req.GetSessionId(), board: req.GetBoardId(), requestID: req.GetRequestId(), reason: req.GetReason(),
		args: req,
	})
	if err != nil {
		return nil, err
	}
	return &boardv1.CancelBoardResponse{
		Board: out.board, EventIds: out.ids, EventsWritten: out.count,
		TimedOutRunIds: out.timedOut,
	}, nil
}

// endRequest is a FailBoard or a CancelBoard: method is the name of the RPC, and tool the name that
// agents know it by, which refusals show.
type endRequest struct {
	method, tool              string
	status                    model.BoardStatus // that the board will have
	session, board, requestID string
	reason                    string
	args                      proto.Message
}

// ended describes a board that ended, and the events of its end.
type ended struct {
	board    *boardv1.Board
	ids      []string // of the first WAL events of the end, at most 100
	count    int32    // of the WAL events of the end
	timedOut []string // runs that did not stop in time
}

// end fails or cancels a board. A board whose steps no worker holds ends at once.
// Any other board is first marked as terminating, which is durable: nothing is
// claimed any more, and a restart continues with the end. Then its workers are
// asked to stop, and the end is written once they have, or after CancelWait.
func (s *Service) end(ctx context.Context, e endRequest) (ended, error) {
	if err := fault.First(
		s.mayEnd(ctx, e.tool, e.session, true),
		fault.RequestID(e.requestID), fault.Name("board_id", e.board),
		fault.TextBytes("reason", e.reason, fault.MaxFreeTextBytes, false),
	); err != nil {
		return ended{}, err
	}
	k := sessionKey(ctx, e.session)
	out, err := s.do(ctx, change{
		frees: true, method: e.method, session: k, board: e.board, requestID: e.requestID, args: e.args,
		decide: func(_ *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error) {
			return rules.DecideEnd(b, env, e.status, e.reason)
		},
	})
	if err != nil {
		return ended{}, err
	}
	result := ended{ids: out.ids, count: out.count}
	result.board, err = s.changedBoard(ctx, k, e.board, out)
	if err != nil {
		return result, plane.Stored(err)
	}
	if _, terminating := journal.Find[*boardv1.BoardTerminating](out.events); !terminating {
		return result, nil
	}
	result, err = s.awaitEnd(ctx, model.BoardKey{Namespace: k.Namespace, Session: k.ID, WAL: result.board.GetWalName()},
		e.board)
	return result, plane.Stored(err)
}

// changedBoard returns the board that a change was about. out is what the change wrote. By now the
// id may mean a newer board, so changedBoard looks first for the oldest ended board with the id
// whose last line is not older than the change. If there is none, it returns the board that the id means.
func (s *Service) changedBoard(ctx context.Context, k model.Key, boardID string, out written) (*boardv1.Board, error) {
	return viewSession(ctx, s, k, func(st *model.State) (*boardv1.Board, error) {
		if se := st.Sessions[k]; se != nil {
			for _, b := range se.Ended {
				if b.ID == boardID && (len(out.events) == 0 || b.LastPosition >= out.events[0].WalSeq) {
					return b.Overview(), nil
				}
			}
		}
		b, err := st.FindBoard(k, boardID, "")
		if err != nil {
			return nil, err
		}
		return b.Overview(), nil
	})
}
