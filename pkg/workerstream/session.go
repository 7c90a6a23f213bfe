package workerstream

import (
	"context"
	"sync"
	"time"
)

// Session is one stream of one worker. It ends with the stream, when the plane
// stops, when the worker connects again, or by End.
type Session[Out any] struct {
	Key   Key
	Hello Hello
	Since time.Time // when the worker connected

	ctx context.Context //nolint:containedctx // the session is what ends with it
	end context.CancelCauseFunc

	merge func(last, m *Out) bool // see NewSession

	mu     sync.Mutex
	outbox []*Out
	queued chan struct{} // capacity 1: the outbox is not empty

	// Guarded by the registry's lock.
	open     bool                // Serve has sent the header, and Registry.Close was not called
	reserved int                 // reservations that are not ended
	assigned map[string]struct{} // ids of assignments
}

// NewSession returns the session of a stream whose hello was checked. ctx is the
// stream's context. If merge is not nil, Send calls it with the last message in the
// outbox and the new one, m: it may add the content of m to last and return true, so that a slow
// stream gets fewer, larger messages. It must not keep m.
func NewSession[Out any](ctx context.Context, key Key, hello Hello, now time.Time,
	merge func(last, m *Out) bool,
) *Session[Out] {
	s := &Session[Out]{
		Key: key, Hello: hello, Since: now, merge: merge,
		queued: make(chan struct{}, 1), assigned: make(map[string]struct{}),
	}
	s.ctx, s.end = context.WithCancelCause(ctx)
	return s
}

// Context ends with the session; context.Cause tells why it ended.
func (s *Session[Out]) Context() context.Context { return s.ctx }

// End ends the session. Only the first cause counts.
func (s *Session[Out]) End(cause error) { s.end(cause) }

// Send queues a message for the worker and never blocks; the queue is not bounded.
// Messages arrive in the order of Send, or not at all if the session ends first.
func (s *Session[Out]) Send(m *Out) {
	s.mu.Lock()
	if n := len(s.outbox); n == 0 || s.merge == nil || !s.merge(s.outbox[n-1], m) {
		s.outbox = append(s.outbox, m)
	}
	s.mu.Unlock()
	signal(s.queued)
}

// take returns the messages in the outbox and empties it.
func (s *Session[Out]) take() []*Out {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.outbox
	s.outbox = nil
	return out
}

// sendLoop sends what is queued until the session ends.
func (s *Session[Out]) sendLoop(send func(*Out) error) {
	for {
		batch := s.take()
		for _, m := range batch {
			if err := send(m); err != nil {
				s.end(err)
				return
			}
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-s.queued:
		case <-s.ctx.Done():
			return
		}
	}
}

// receiveLoop calls handle with the received messages, in order, until recv or handle
// returns an error, and then ends the session with that error.
func receiveLoop[In, Out any](s *Session[Out], recv func() (*In, error), handle func(*In) error) {
	for {
		m, err := recv()
		if err == nil {
			err = handle(m)
		}
		if err != nil {
			s.end(err)
			return
		}
	}
}

// signal wakes the receiver of a channel of capacity 1, at once or when it receives next. It does not block.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
