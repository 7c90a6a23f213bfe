package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"quartet/pkg/bus"
	"quartet/pkg/journal/framelog"
)

// ErrBroken is returned by a session of Events that had an error before.
var ErrBroken = errors.New("sim: the connection is broken")

// Events is the stream EVENTS in memory, which all processes of a run share.
type Events struct {
	// Stored, if set, is called for each message that is stored.
	Stored func(m *nats.Msg)

	mu       sync.Mutex
	messages []*nats.Msg
	losses   int                 // how often messages were lost, with all that was on its way
	sessions map[*session]func() // what is called when a session is lost
}

// NewEvents returns an empty stream.
func NewEvents(stored func(m *nats.Msg)) *Events {
	return &Events{Stored: stored, sessions: map[*session]func(){}}
}

// store appends messages, unless the stream lost some since they were sent.
func (e *Events) store(losses int, all []*nats.Msg) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if losses != e.losses {
		return
	}
	for _, m := range all {
		e.messages = append(e.messages, m)
		if e.Stored != nil {
			e.Stored(m)
		}
	}
}

// Messages returns what is stored, in order.
func (e *Events) Messages() []*nats.Msg {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.messages[:len(e.messages):len(e.messages)]
}

// Erase removes the messages whose subject has a prefix.
func (e *Events) Erase(prefix string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.messages = slices.DeleteFunc(slices.Clone(e.messages), func(m *nats.Msg) bool {
		return strings.HasPrefix(m.Subject, prefix)
	})
}

// Lose removes the newest n messages, as a loss of power does, and breaks all sessions.
func (e *Events) Lose(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.losses++
	e.messages = slices.Clone(e.messages[:max(0, len(e.messages)-n)])
	for s, lost := range e.sessions {
		s.broken = true
		lost()
	}
}

// EventsTarget is Events as one process sees them. The messages of a window, up to the one whose answer is awaited,
// are one Crossing of the simulation, the answer is another, and so is a request for a position.
type EventsTarget struct {
	Queue  *Queue
	Of     *Process
	Name   string
	Events *Events
}

// session is a connection of a publisher.
type session struct {
	*EventsTarget
	sent   []*nats.Msg
	broken bool // guarded by Events.mu
}

var _ bus.Target = (*EventsTarget)(nil)

// eventsFaults of a window: it is lost; stored and not acknowledged; its first half is stored; it is stored later.
var eventsFaults = []Outcome{Lost, Unanswered, Busy, Delayed}

// Exists implements bus.Target.
func (t *EventsTarget) Exists(context.Context) error {
	if t.Of.isDead() {
		return ErrDead
	}
	return nil
}

// Open implements bus.Target.
func (t *EventsTarget) Open(lost func()) (bus.Session, error) {
	if t.Of.isDead() {
		return nil, ErrDead
	}
	s := &session{EventsTarget: t}
	t.Events.mu.Lock()
	defer t.Events.mu.Unlock()
	t.Events.sessions[s] = lost
	return s, nil
}

// Close implements bus.Session.
func (s *session) Close() {
	s.Events.mu.Lock()
	defer s.Events.mu.Unlock()
	s.broken = true
	delete(s.Events.sessions, s)
}

// isBroken reports whether the session had an error.
func (s *session) isBroken() bool {
	s.Events.mu.Lock()
	defer s.Events.mu.Unlock()
	return s.broken
}

// lossesNow returns how often the stream has lost messages.
func (e *Events) lossesNow() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.losses
}

// fail breaks the session and returns an error.
func (s *session) fail(err error) error {
	s.Events.mu.Lock()
	defer s.Events.mu.Unlock()
	s.broken = true
	return err
}

// Position implements bus.Session.
func (s *session) Position(ctx context.Context, subject string) (framelog.End, error) {
	o, err := s.Queue.Park(ctx, Crossing{Edge: "events " + s.Name + " position", Of: s.Of, Faults: answerFaults})
	if err != nil {
		return framelog.End{}, err
	}
	if o != Pass || s.isBroken() {
		return framelog.End{}, s.fail(ErrBroken)
	}
	all := s.Events.Messages()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Subject == subject {
			return bus.PositionOf(all[i].Header)
		}
	}
	return framelog.End{}, nil
}

// Publish implements bus.Session.
func (s *session) Publish(ctx context.Context, m *nats.Msg, last bool) error {
	s.sent = append(s.sent, &nats.Msg{Subject: m.Subject, Header: maps.Clone(m.Header), Data: bytes.Clone(m.Data)})
	if !last {
		return nil
	}
	all := s.sent
	s.sent = nil
	losses := s.Events.lossesNow()
	edge := fmt.Sprintf("events %s window %d", s.Name, len(all))
	o, err := s.Queue.Park(ctx, Crossing{Edge: edge, Of: s.Of, Faults: eventsFaults})
	switch {
	case err != nil:
		return s.fail(err)
	case o == Died || o == Lost || s.isBroken():
		return s.fail(ErrBroken)
	case o == Busy:
		s.Events.store(losses, all[:len(all)/2])
		return s.fail(ErrBroken)
	case o == Delayed:
		go s.late(edge, losses, all)
		return s.fail(ErrBroken)
	}
	s.Events.store(losses, all)
	if o != Pass {
		return s.fail(ErrBroken)
	}
	o, err = s.Queue.Park(ctx, Crossing{Edge: "answer " + edge, Of: s.Of, Faults: answerFaults})
	if err != nil || o != Pass || s.isBroken() {
		return s.fail(ErrBroken)
	}
	return nil
}

// late stores a window whose session is over: the broker had received it.
func (s *session) late(edge string, losses int, all []*nats.Msg) {
	if o, _ := s.Queue.Park(context.Background(), Crossing{Edge: "late " + edge, Faults: answerFaults}); o == Pass {
		s.Events.store(losses, all)
	}
}
