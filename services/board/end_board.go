package board

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
	"quartet/services/board/rules"
)

// CompleteBoard closes a board that is done (S2-425 to S2-427).
func (s *Service) CompleteBoard(ctx context.Context, req *boardv1.CompleteBoardRequest) (*boardv1.CompleteBoardResponse, error) {
	if err := fault.First(
		s.orchestrate(ctx, "agent.task_complete", req.GetSessionId()),
		fault.RequestID(req.GetRequestId()), fault.Name("board_id", req.GetBoardId()),
		fault.TextBytes("reason", req.GetReason(), fault.MaxFreeTextBytes, false),
	); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	out, err := s.change(ctx, command{
		method: "CompleteBoard", k: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req,
		decide: func(_ *model.State, b *model.Board, _ journal.Env) ([]*journal.Event, error) {
			return rules.DecideComplete(b, req.GetReason())
		},
	})
	if err != nil {
		return nil, err
	}
	b, err := s.endedAs(ctx, k, req.GetBoardId(), out)
	return &boardv1.CompleteBoardResponse{Board: b, EventIds: out.ids, EventsWritten: out.n}, err
}

// FailBoard stops the workers and fails what has not ended (S2-428 to S2-436).
func (s *Service) FailBoard(ctx context.Context, req *boardv1.FailBoardRequest) (*boardv1.FailBoardResponse, error) {
	o, err := s.end(ctx, endRequest{
		method: "FailBoard", tool: "agent.task_fail", to: model.BoardFailed,
		session: req.GetSessionId(), board: req.GetBoardId(), requestID: req.GetRequestId(), reason: req.GetReason(), args: req,
	})
	if err != nil {
		return nil, err
	}
	return &boardv1.FailBoardResponse{Board: o.board, EventIds: o.ids, EventsWritten: o.n, TimedOutRunIds: o.timedOut}, nil
}

// CancelBoard stops the workers and cancels what has not ended (S2-429 to S2-436).
func (s *Service) CancelBoard(ctx context.Context, req *boardv1.CancelBoardRequest) (*boardv1.CancelBoardResponse, error) {
	o, err := s.end(ctx, endRequest{
		method: "CancelBoard", tool: "agent.task_cancel", to: model.BoardCancelled,
		session: req.GetSessionId(), board: req.GetBoardId(), requestID: req.GetRequestId(), reason: req.GetReason(), args: req,
	})
	if err != nil {
		return nil, err
	}
	return &boardv1.CancelBoardResponse{Board: o.board, EventIds: o.ids, EventsWritten: o.n, TimedOutRunIds: o.timedOut}, nil
}

// endRequest is one FailBoard or CancelBoard.
type endRequest struct {
	method, tool              string
	to                        model.BoardStatus
	session, board, requestID string
	reason                    string
	args                      proto.Message
}

type ended struct {
	board    *boardv1.Board
	ids      []string
	n        int32
	timedOut []string
}

// end ends a board: at once where no worker holds a step. Else it is marked as
// terminating, which is durable, so that nobody claims any more and a restart
// goes on with it; its workers are told to stop; and when they have, or after
// the bounded wait, the end is written.
func (s *Service) end(ctx context.Context, e endRequest) (ended, error) {
	if err := fault.First(
		s.operate(ctx, e.tool, e.session),
		fault.RequestID(e.requestID), fault.Name("board_id", e.board),
		fault.TextBytes("reason", e.reason, fault.MaxFreeTextBytes, false),
	); err != nil {
		return ended{}, err
	}
	k := sessionKey(ctx, e.session)
	out, err := s.change(ctx, command{
		method: e.method, k: k, board: e.board, requestID: e.requestID, args: e.args,
		decide: func(_ *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error) {
			if err := b.CheckChangeable(); err != nil {
				return nil, err
			}
			if runs := b.HoldingRuns(); len(runs) > 0 || b.CountUnfinished() > rules.EndBatch {
				return []*journal.Event{b.NewEvent("", &boardv1.BoardTerminating{Status: e.to, Reason: e.reason, RunIds: runs})}, nil
			}
			f := rules.NewTransition(b, env)
			f.EndSteps(e.to, e.reason)
			return f.Events, nil
		},
	})
	if err != nil {
		return ended{}, err
	}
	o := ended{ids: out.ids, n: out.n}
	o.board, err = s.endedAs(ctx, k, e.board, out)
	if err != nil || len(out.events) == 0 {
		return o, err
	}
	if _, waits := out.events[0].Payload.(*boardv1.BoardTerminating); !waits {
		return o, nil
	}
	last, err := s.awaitEnd(ctx, model.BoardKey{Namespace: k.Namespace, Session: k.ID, WAL: o.board.GetWalName()}, e.board)
	if err != nil {
		return ended{}, err
	}
	return last, nil
}

// endedAs is the board that a change was about.
func (s *Service) endedAs(ctx context.Context, k model.Key, boardID string, out written) (*boardv1.Board, error) {
	at := func(b *model.Board) bool { return len(out.events) == 0 || b.LastPosition >= out.events[0].WalSeq }
	return journalView(ctx, s, k, func(st *model.State) (*boardv1.Board, error) {
		// By now the id may mean a newer board; the one that ended is the first
		// that was written to afterwards.
		if se := st.Sessions[k]; se != nil {
			for _, b := range se.Ended {
				if b.ID == boardID && at(b) {
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

// awaitEnd tells the workers of a terminating board to stop, and waits until it
// has ended.
func (s *Service) awaitEnd(ctx context.Context, bk model.BoardKey, boardID string) (ended, error) {
	k := model.Key{Namespace: bk.Namespace, ID: bk.Session}
	s.background(func() { s.tellToStop(bk) })
	for {
		changed := s.watches.on(watchKey{bk.Namespace, bk.Session, boardID})
		type look struct {
			b     *boardv1.Board
			ended bool
			free  bool
		}
		l, err := journalView(ctx, s, k, func(st *model.State) (look, error) {
			b := st.Sessions[k].ByWAL[bk.WAL]
			return look{b.Overview(), model.Ended(b.Status), b.Terminating != nil && len(b.HoldingRuns()) == 0}, nil
		})
		if err != nil {
			return ended{}, err
		}
		if l.ended {
			return s.lastWords(ctx, bk, l.b)
		}
		if l.free {
			if err := s.finishEnd(ctx, bk, false); err != nil {
				return ended{}, err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ended{}, fault.Deadline.Newf("board %q still waits for its workers to stop; it will end within %s", boardID, s.cfg.CancelWait).With("outcome", "pending")
		case <-s.ctx.Done():
			return ended{}, fault.NotReady.New("the server stops; the board goes on ending when it is back: repeat the request").With("outcome", "pending")
		}
	}
}

// lastWords are the lines by which a board ended.
func (s *Service) lastWords(ctx context.Context, bk model.BoardKey, b *boardv1.Board) (ended, error) {
	o := ended{board: b}
	k := model.Key{Namespace: bk.Namespace, ID: bk.Session}
	at, err := journalView(ctx, s, k, func(st *model.State) ([]uint64, error) {
		b := st.Sessions[k].ByWAL[bk.WAL]
		// What ends the steps stands right before the board's end.
		steps := int64(b.Count[model.StepFailed] + b.Count[model.StepCancelled])
		return b.LinePositions(max(0, b.Lines-1-steps), int(steps)+1), nil
	})
	if err != nil {
		return o, err
	}
	events, err := journal.ReadBack(ctx, s.engine.For(bk.Namespace, bk.Session), at)
	if err != nil || len(events) == 0 {
		return o, err
	}
	last := events[len(events)-1]
	events = slices.DeleteFunc(events, func(ev *journal.Event) bool { return ev.RequestID != last.RequestID || ev.Method != last.Method })
	o.ids, o.n = walEvents(events)
	o.timedOut = s.timedOut(ctx, bk, events[0].WalSeq)
	return o, nil
}

// timedOut reads the line in front of the end, which names the runs that had
// not stopped.
func (s *Service) timedOut(ctx context.Context, bk model.BoardKey, first uint64) []string {
	if first < 2 {
		return nil
	}
	before, err := journal.ReadBack(ctx, s.engine.For(bk.Namespace, bk.Session), []uint64{first - 1})
	if err != nil || len(before) == 0 || before[0].SessionID != bk.Session {
		return nil // what is missing is a hint
	}
	if p, ok := before[0].Payload.(*boardv1.ChildAgentCancelTimeout); ok {
		return p.GetRunIds()
	}
	return nil
}

func endKey(k model.BoardKey) string {
	return dueEnd + strings.Join([]string{k.Namespace, k.Session, k.WAL}, "\x00")
}

// tellToStop tells the workers of a terminating board to stop, and sees to it
// that the board ends even if they do not.
func (s *Service) tellToStop(bk model.BoardKey) {
	k := model.Key{Namespace: bk.Namespace, ID: bk.Session}
	runs, err := journalView(s.ctx, s, k, func(st *model.State) ([]string, error) {
		if b := st.Sessions[k].ByWAL[bk.WAL]; b.Terminating != nil {
			return b.Terminating.GetRunIds(), nil
		}
		return nil, nil
	})
	if err != nil {
		s.deps.Logger.Warn("board: could not tell workers to stop; the board ends regardless", zap.Error(err))
	}
	for _, id := range runs {
		s.floor.stop(bk.Namespace, id)
	}
	if _, set := s.due.At(endKey(bk)); !set {
		s.due.Set(endKey(bk), s.deps.Clock.Now().Add(s.cfg.CancelWait))
	}
}

// endDue ends a board whose workers have had their time.
func (s *Service) endDue(due string) {
	parts := strings.Split(strings.TrimPrefix(due, dueEnd), "\x00")
	if len(parts) != 3 {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	if err := s.finishEnd(ctx, model.BoardKey{Namespace: parts[0], Session: parts[1], WAL: parts[2]}, true); err != nil {
		s.deps.Logger.Warn("board: could not end a board; trying again", zap.Error(err))
		s.due.Set(due, s.deps.Clock.Now().Add(time.Second))
	}
}

// finishEnd writes the end of a terminating board: of its workers' steps too,
// once they have stopped or, with late, whether they have or not.
func (s *Service) finishEnd(ctx context.Context, bk model.BoardKey, late bool) error {
	k := model.Key{Namespace: bk.Namespace, ID: bk.Session}
	type whose struct {
		actor   journal.Actor
		boardID string
		over    bool
	}
	// The end is written on behalf of whoever asked for it.
	at, err := journalView(ctx, s, k, func(st *model.State) (whose, error) {
		se := st.Sessions[k]
		if se == nil || se.ByWAL[bk.WAL] == nil || se.ByWAL[bk.WAL].Terminating == nil {
			return whose{over: true}, nil
		}
		b := se.ByWAL[bk.WAL]
		return whose{actor: b.EndedBy, boardID: b.ID}, nil
	})
	if err != nil || at.over {
		return err
	}
	for {
		out, err := s.change(ctx, command{
			method: "EndBoard", k: k, board: at.boardID, actor: &at.actor, ended: true,
			decide: func(_ *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error) {
				if b.Key != bk || b.Terminating == nil {
					return nil, nil
				}
				runs := b.HoldingRuns()
				if len(runs) > 0 && !late {
					return nil, nil
				}
				f := rules.NewTransition(b, env)
				if len(runs) > 0 {
					f.Emit(nil, &boardv1.ChildAgentCancelTimeout{RunIds: runs})
				}
				f.EndSteps(b.Terminating.GetStatus(), b.Terminating.GetReason())
				return f.Events, nil
			},
		})
		if err != nil || len(out.events) == 0 {
			return err
		}
	}
}
