package board

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
	"quartet/services/board/rules"
)

// endTimeout bounds one attempt to write the end of a board.
const endTimeout = 10 * time.Second

// awaitEnd asks the workers of a terminating board to stop, writes the end once no run holds a
// step, and returns when the board has ended. The end does not depend on the caller: if the caller
// leaves, the board ends after CancelWait at the latest.
func (s *Service) awaitEnd(ctx context.Context, bk model.BoardKey, boardID string) (ended, error) {
	k := model.Key{Namespace: bk.Namespace, ID: bk.Session}
	changes := s.watches.Subscribe(boardWatch{bk.Namespace, bk.Session, boardID})
	defer changes.Close()
	s.background(func() { s.stopWorkers(bk) })
	for {
		type progress struct {
			board *boardv1.Board
			ended bool
			idle  bool // no run holds a step any more
		}
		now, err := viewSession(ctx, s, k, func(st *model.State) (progress, error) {
			b := st.Sessions[k].WAL(bk.WAL)
			return progress{b.Overview(), model.Ended(b.Status), b.Terminating != nil && len(b.HoldingRuns()) == 0}, nil
		})
		if err != nil {
			return ended{}, err
		}
		if now.ended {
			return s.readEnd(ctx, bk, now.board)
		}
		if now.idle {
			if err := s.writeEnd(ctx, bk, false); err != nil {
				return ended{}, err
			}
			continue
		}
		select {
		case <-changes.C():
		case <-ctx.Done():
			return ended{}, fault.Deadline.Newf("board %q still waits for its workers to stop; it will end within %s",
				boardID, s.cfg.CancelWait).With("outcome", "pending")
		case <-s.watches.Stopped():
			return ended{}, fault.NotReady.New("the server stops; the board goes on ending when it is back: repeat "+
				"the request").With("outcome", "pending")
		}
	}
}

// readEnd returns b, the board after its end, with the events by which it ended. If these are not
// kept any more, it returns the board alone.
func (s *Service) readEnd(ctx context.Context, bk model.BoardKey, b *boardv1.Board) (ended, error) {
	result := ended{board: b}
	k := model.Key{Namespace: bk.Namespace, ID: bk.Session}
	positions, err := viewSession(ctx, s, k, func(st *model.State) ([]uint64, error) {
		b := st.Sessions[k].WAL(bk.WAL).Whole()
		// The lines that end steps precede the last line, which ends the board.
		steps := int64(b.Count[model.StepFailed] + b.Count[model.StepCancelled])
		return b.LinePositions(max(0, b.Lines-1-steps), int(steps)+1), nil
	})
	if err != nil {
		return result, err
	}
	events, err := journal.ReadBack(ctx, s.engine.For(bk.Namespace, bk.Session), positions)
	if err != nil || len(events) == 0 || slices.ContainsFunc(events, (*journal.Event).Removed) { // it ended long ago
		return result, err
	}
	last := events[len(events)-1]
	events = slices.DeleteFunc(events, func(ev *journal.Event) bool {
		return ev.RequestID != last.RequestID ||
			ev.Method != last.Method
	})
	w, err := answerWritten(events)
	result.ids, result.count = w.ids, w.count
	result.timedOut = s.readTimedOut(ctx, bk, events[0].WalSeq)
	return result, err
}

// readTimedOut returns the runs that did not stop in time. first is the position of the first event
// of the end; the event before that names these runs, if there were any.
func (s *Service) readTimedOut(ctx context.Context, bk model.BoardKey, first uint64) []string {
	if first < 2 {
		return nil
	}
	before, err := journal.ReadBack(ctx, s.engine.For(bk.Namespace, bk.Session), []uint64{first - 1})
	if err != nil || len(before) == 0 || before[0].SessionID != bk.Session {
		return nil // the board has ended all the same; the list is additional
	}
	p, _ := journal.Find[*boardv1.ChildAgentCancelTimeout](before)
	return p.GetRunIds()
}

// endingKey returns the key of a terminating board among the endings.
func endingKey(k model.BoardKey) string {
	return strings.Join([]string{k.Namespace, k.Session, k.WAL}, "\x00")
}

// stopWorkers asks the workers of a terminating board to stop, and sets the time at
// which the board ends even if they do not.
func (s *Service) stopWorkers(bk model.BoardKey) {
	k := model.Key{Namespace: bk.Namespace, ID: bk.Session}
	runs, err := viewSession(s.ctx, s, k, func(st *model.State) ([]string, error) {
		if b := st.Sessions[k].WAL(bk.WAL); b.Terminating != nil {
			return b.Terminating.GetRunIds(), nil
		}
		return nil, nil
	})
	if err != nil {
		s.deps.Logger.Warn("board: workers could not be asked to stop; the board ends regardless", zap.Error(err))
	}
	for _, id := range runs {
		s.workers.Cancel(bk.Namespace, id)
	}
	if _, set := s.endings.At(endingKey(bk)); !set {
		s.endings.Set(endingKey(bk), s.deps.Clock.Now().Add(s.cfg.CancelWait))
	}
}

// endDue ends the boards of keys, as endingKey returns them, whose workers have had CancelWait
// to stop. What fails is tried again after a second.
func (s *Service) endDue(keys []string) {
	for _, key := range keys {
		parts := strings.Split(key, "\x00")
		ctx, cancel := context.WithTimeout(s.ctx, endTimeout)
		if err := s.writeEnd(ctx, model.BoardKey{Namespace: parts[0], Session: parts[1], WAL: parts[2]}, true); err !=
			nil {
			s.deps.Logger.Warn("board: a board could not be ended; trying again", zap.Error(err))
			s.endings.Set(key, s.deps.Clock.Now().Add(time.Second))
		}
		cancel()
	}
}

// writeEnd writes the end of a terminating board, as the actor that requested it.
// While runs hold steps of the board it does nothing, unless timeout is set: then
// their steps end too. A board with many steps ends in several writes.
func (s *Service) writeEnd(ctx context.Context, bk model.BoardKey, timeout bool) error {
	k := model.Key{Namespace: bk.Namespace, ID: bk.Session}
	type terminating struct {
		boardID string // empty: the board is not terminating
		actor   journal.Actor
	}
	t, err := viewSession(ctx, s, k, func(st *model.State) (terminating, error) {
		se := st.Sessions[k]
		if se == nil || se.WAL(bk.WAL) == nil || se.WAL(bk.WAL).Terminating == nil {
			return terminating{}, nil
		}
		b := se.WAL(bk.WAL)
		return terminating{b.ID, b.EndedBy}, nil
	})
	if err != nil || t.boardID == "" {
		return err
	}
	for {
		out, err := s.do(ctx, change{
			frees: true, method: "EndBoard", session: k, board: t.boardID, actor: &t.actor, mayBeEnded: true,
			decide: func(_ *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error) {
				if b.Key != bk {
					return nil, nil
				}
				return rules.DecideTerminated(b, env, timeout), nil
			},
		})
		if err != nil || len(out.events) == 0 {
			return err
		}
	}
}

// endInBackground ends a board that the deletion of its owner marked as
// terminating: no caller waits for that.
func (s *Service) endInBackground(ev *journal.Event) {
	k := model.Key{Namespace: ev.Namespace, ID: ev.SessionID}
	s.background(func() {
		bk, err := viewSession(s.ctx, s, k, func(st *model.State) (model.BoardKey, error) {
			if b := st.ActiveBoard(k, ev.TaskID); b != nil && b.Terminating != nil {
				return b.Key, nil
			}
			return model.BoardKey{}, nil
		})
		if err == nil && bk.WAL != "" {
			_, err = s.awaitEnd(s.ctx, bk, ev.TaskID)
		}
		if err != nil && s.ctx.Err() == nil {
			s.deps.Logger.Warn("board: the board of a deleted agent ends later, when its workers have had their time",
				zap.String("board_id", ev.TaskID), zap.Error(err))
		}
	})
}
