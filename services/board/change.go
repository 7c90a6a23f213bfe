package board

import (
	"context"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
)

// change is one change of one board.
type change struct {
	method    string
	session   model.Key
	board     string
	requestID string
	args      proto.Message
	actor     *journal.Actor // nil: the caller
	// decide is the rule. The board is not damaged and, unless mayBeEnded is set, has
	// not ended.
	decide     func(st *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error)
	mayBeEnded bool // see decide
	frees      bool // it ends something and may use the reserve of the store; see plane.Command
}

// written is what a change wrote.
type written struct {
	ids    []string         // of the first WAL events, at most 100
	count  int32            // of all WAL events
	events []*journal.Event // all events
	// replayed says that the request was repeated: the events are those of the first one.
	replayed bool
}

// maxEventIDs bounds the event ids of a response.
const maxEventIDs = 100

// answerWritten is the Answer of commands about boards: it returns what they wrote. It returns no error.
func answerWritten(events []*journal.Event) (written, error) {
	w := written{events: events}
	for _, ev := range events {
		if !model.InWAL(ev) {
			continue
		}
		w.count++
		if len(w.ids) < maxEventIDs {
			w.ids = append(w.ids, ev.ID)
		}
	}
	return w, nil
}

// do ends the runs of the board whose leases are overdue, then decides and writes a change. For a
// repeated request id it returns the outcome of the first request.
func (s *Service) do(ctx context.Context, c change) (written, error) {
	if err := s.leases.ExpireBoard(ctx, c.session, c.board); err != nil {
		return written{}, err
	}
	out, result, err := plane.DoResult(ctx, s.engine, plane.Command[*model.State, written]{
		Frees: c.frees, Method: c.method, AgentID: c.session.ID, RequestID: c.requestID, Args: c.args, Actor: c.actor,
		Decide: func(st *model.State, env journal.Env) (d journal.Decision[written], err error) {
			b, err := st.FindBoard(c.session, c.board, "")
			if err == nil {
				err = b.CheckUsable()
			}
			if err == nil && !c.mayBeEnded {
				err = b.CheckOpen()
			}
			if err != nil {
				return d, err
			}
			d.Events, err = c.decide(st, b, env)
			return d, err
		},
		Answer: answerWritten,
	})
	out.replayed = result.Replayed
	return out, err
}

// viewBoard ends the runs of a board whose leases are overdue, then calls read with the board:
// the one with the WAL walName if that is not empty, otherwise the one that boardID means (see
// FindBoard). It refuses a damaged board. read must not keep or change what it gets.
func viewBoard[R any](ctx context.Context, s *Service, session model.Key, boardID, walName string,
	read func(st *model.State, b *model.Board) (R, error),
) (R, error) {
	if err := s.leases.ExpireBoard(ctx, session, boardID); err != nil {
		var none R
		return none, err
	}
	return viewSession(ctx, s, session, func(st *model.State) (out R, err error) {
		b, err := st.FindBoard(session, boardID, walName)
		if err == nil {
			err = b.CheckUsable()
		}
		if err != nil {
			return out, err
		}
		return read(st, b)
	})
}

// viewSession calls read with the state of the partition that has a session. The session may not exist.
func viewSession[R any](ctx context.Context, s *Service, session model.Key, read func(st *model.State) (R, error)) (R,
	error,
) {
	out, _, err := journal.View(ctx, s.engine.For(session.Namespace, session.ID), read)
	return out, err
}

// sessionKey returns the key of a session in the caller's namespace.
func sessionKey(ctx context.Context, sessionID string) model.Key {
	return model.Key{Namespace: rpc.ActorFrom(ctx).Namespace, ID: sessionID}
}
