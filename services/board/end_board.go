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
	out, err := s.change(ctx, change{
		method: "CompleteBoard", k: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req,
		decide: func(_ *State, b *board, _ journal.Env) ([]*journal.Event, error) {
			return completed(b, req.GetReason())
		},
	})
	if err != nil {
		return nil, err
	}
	b, err := s.endedAs(ctx, k, req.GetBoardId(), out)
	return &boardv1.CompleteBoardResponse{Board: b, EventIds: out.ids, EventsWritten: out.n}, err
}

// completed is the rule of CompleteBoard.
func completed(b *board, reason string) ([]*journal.Event, error) {
	if err := b.changeable(); err != nil {
		return nil, err
	}
	if !b.completeable() {
		ids := b.hindering()
		return nil, fault.BoardNotCompleteable.Newf("board %q cannot be completed: %s must be completed, be optional and ended, or be deleted; no step may be held", b.id, "steps "+some(ids)).
			With("step_ids", some(ids))
	}
	var events []*journal.Event
	for _, s := range b.order {
		// Optional, or the board would not be completeable.
		if s != nil && (s.rec.GetStatus() == stepPending || s.rec.GetStatus() == stepReady) {
			events = append(events, b.event(s.id(), &boardv1.TaskStepCancelled{Reason: "task_completed"}))
		}
	}
	return append(events, b.event("", &boardv1.TaskCompleted{Reason: reason})), nil
}

// FailBoard stops the workers and fails what has not ended (S2-428 to S2-436).
func (s *Service) FailBoard(ctx context.Context, req *boardv1.FailBoardRequest) (*boardv1.FailBoardResponse, error) {
	o, err := s.end(ctx, endRequest{
		method: "FailBoard", tool: "agent.task_fail", to: taskFailed,
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
		method: "CancelBoard", tool: "agent.task_cancel", to: taskCancelled,
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
	to                        taskStatus
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
	out, err := s.change(ctx, change{
		method: e.method, k: k, board: e.board, requestID: e.requestID, args: e.args,
		decide: func(_ *State, b *board, env journal.Env) ([]*journal.Event, error) {
			if err := b.changeable(); err != nil {
				return nil, err
			}
			if runs := b.holding(); len(runs) > 0 || b.unsettled() > endChunk {
				return []*journal.Event{b.event("", &boardv1.BoardTerminating{Status: e.to, Reason: e.reason, RunIds: runs})}, nil
			}
			f := newFlow(b, env)
			f.endSteps(e.to, e.reason)
			return f.events, nil
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
	last, err := s.awaitEnd(ctx, boardKey{k.namespace, k.id, o.board.GetWalName()}, e.board)
	if err != nil {
		return ended{}, err
	}
	return last, nil
}

// unsettled is how many steps have not come to an end of their own.
func (b *board) unsettled() int {
	return len(b.steps) - b.count[stepCompleted] - b.count[stepFailed] - b.count[stepCancelled]
}

// holding are the runs that hold steps, in order.
func (b *board) holding() []string {
	var out []string
	for id, r := range b.runs {
		if r.holds() {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// endedAs is the board that a change was about.
func (s *Service) endedAs(ctx context.Context, k key, boardID string, out done) (*boardv1.Board, error) {
	at := func(b *board) bool { return len(out.events) == 0 || b.lastAt >= out.events[0].WalSeq }
	return journalView(ctx, s, k, func(st *State) (*boardv1.Board, error) {
		// By now the id may mean a newer board; the one that ended is the first
		// that was written to afterwards.
		if se := st.sessions[k]; se != nil {
			for _, b := range se.ended {
				if b.id == boardID && at(b) {
					return b.summarized(), nil
				}
			}
		}
		b, err := st.find(k, boardID, "")
		if err != nil {
			return nil, err
		}
		return b.summarized(), nil
	})
}

// awaitEnd tells the workers of a terminating board to stop, and waits until it
// has ended.
func (s *Service) awaitEnd(ctx context.Context, bk boardKey, boardID string) (ended, error) {
	k := key{bk.namespace, bk.session}
	s.background(func() { s.tellToStop(bk) })
	for {
		changed := s.watches.on(watchKey{bk.namespace, bk.session, boardID})
		type look struct {
			b     *boardv1.Board
			ended bool
			free  bool
		}
		l, err := journalView(ctx, s, k, func(st *State) (look, error) {
			b := st.sessions[k].byWal[bk.wal]
			return look{b.summarized(), terminal(b.status), b.terminating != nil && len(b.holding()) == 0}, nil
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
func (s *Service) lastWords(ctx context.Context, bk boardKey, b *boardv1.Board) (ended, error) {
	o := ended{board: b}
	k := key{bk.namespace, bk.session}
	at, err := journalView(ctx, s, k, func(st *State) ([]uint64, error) {
		b := st.sessions[k].byWal[bk.wal]
		// What ends the steps stands right before the board's end.
		steps := int64(b.count[stepFailed] + b.count[stepCancelled])
		return b.positions(max(0, b.lines-1-steps), int(steps)+1), nil
	})
	if err != nil {
		return o, err
	}
	events, err := journal.ReadBack(ctx, s.engine.For(bk.namespace, bk.session), at)
	if err != nil || len(events) == 0 {
		return o, err
	}
	last := events[len(events)-1]
	events = slices.DeleteFunc(events, func(ev *journal.Event) bool { return ev.RequestID != last.RequestID || ev.Method != last.Method })
	o.ids, o.n = written(events)
	o.timedOut = s.timedOut(ctx, bk, events[0].WalSeq)
	return o, nil
}

// timedOut reads the line in front of the end, which names the runs that had
// not stopped.
func (s *Service) timedOut(ctx context.Context, bk boardKey, first uint64) []string {
	if first < 2 {
		return nil
	}
	before, err := journal.ReadBack(ctx, s.engine.For(bk.namespace, bk.session), []uint64{first - 1})
	if err != nil || len(before) == 0 || before[0].SessionID != bk.session {
		return nil // what is missing is a hint
	}
	if p, ok := before[0].Payload.(*boardv1.ChildAgentCancelTimeout); ok {
		return p.GetRunIds()
	}
	return nil
}

func endKey(k boardKey) string {
	return dueEnd + strings.Join([]string{k.namespace, k.session, k.wal}, "\x00")
}

// tellToStop tells the workers of a terminating board to stop, and sees to it
// that the board ends even if they do not.
func (s *Service) tellToStop(bk boardKey) {
	k := key{bk.namespace, bk.session}
	runs, err := journalView(s.ctx, s, k, func(st *State) ([]string, error) {
		if b := st.sessions[k].byWal[bk.wal]; b.terminating != nil {
			return b.terminating.GetRunIds(), nil
		}
		return nil, nil
	})
	if err != nil {
		s.deps.Logger.Warn("board: could not tell workers to stop; the board ends regardless", zap.Error(err))
	}
	for _, id := range runs {
		s.floor.stop(bk.namespace, id)
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
	if err := s.finishEnd(ctx, boardKey{parts[0], parts[1], parts[2]}, true); err != nil {
		s.deps.Logger.Warn("board: could not end a board; trying again", zap.Error(err))
		s.due.Set(due, s.deps.Clock.Now().Add(time.Second))
	}
}

// finishEnd writes the end of a terminating board: of its workers' steps too,
// once they have stopped or, with late, whether they have or not.
func (s *Service) finishEnd(ctx context.Context, bk boardKey, late bool) error {
	k := key{bk.namespace, bk.session}
	type whose struct {
		actor   journal.Actor
		boardID string
		over    bool
	}
	// The end is written on behalf of whoever asked for it.
	at, err := journalView(ctx, s, k, func(st *State) (whose, error) {
		se := st.sessions[k]
		if se == nil || se.byWal[bk.wal] == nil || se.byWal[bk.wal].terminating == nil {
			return whose{over: true}, nil
		}
		b := se.byWal[bk.wal]
		return whose{actor: b.endedBy, boardID: b.id}, nil
	})
	if err != nil || at.over {
		return err
	}
	for {
		out, err := s.change(ctx, change{
			method: "EndBoard", k: k, board: at.boardID, actor: &at.actor, ended: true,
			decide: func(_ *State, b *board, env journal.Env) ([]*journal.Event, error) {
				if b.key != bk || b.terminating == nil {
					return nil, nil
				}
				runs := b.holding()
				if len(runs) > 0 && !late {
					return nil, nil
				}
				f := newFlow(b, env)
				if len(runs) > 0 {
					f.emit(nil, &boardv1.ChildAgentCancelTimeout{RunIds: runs})
				}
				f.endSteps(b.terminating.GetStatus(), b.terminating.GetReason())
				return f.events, nil
			},
		})
		if err != nil || len(out.events) == 0 {
			return err
		}
	}
}
