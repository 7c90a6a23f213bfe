package gateway

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"quartet/pkg/fault"
)

const (
	// maxPending is how many bytes of events, as they are in the journal, the streams of a namespace hold at a time
	// that were not received yet. The others wait, without holding anything.
	maxPending = 16 << 20
	// patience is how long a stream may wait for others of its namespace. After that, those streams are ended that
	// have held events for as long, because their clients do not receive.
	patience = 5 * time.Second
)

// errSlow ends a stream that keeps others of its namespace from going on.
var errSlow = fault.Overloaded.New("the stream was read too slowly, and other streams of the namespace wait for it; "+
	"open it again from its last cursor", "bound", "reader")

// pendingBytes counts the bytes of events that the streams of each namespace hold. The zero value is ready to use.
type pendingBytes struct {
	mu sync.Mutex
	of map[string]*pendingShare
}

// pendingShare is what the streams of one namespace hold.
type pendingShare struct {
	room    *semaphore.Weighted
	streams int // that use it; guarded by pendingBytes.mu

	mu   sync.Mutex
	held map[*pendingHeld]bool
}

// pendingHeld are the events of one frame that a stream holds.
type pendingHeld struct {
	since time.Time
	end   context.CancelCauseFunc // ends the stream
	done  func()                  // gives the bytes back; further calls do nothing
}

// Open returns the share of a namespace. closed must be called when the stream ends.
func (p *pendingBytes) Open(namespace string) (s *pendingShare, closed func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]*pendingShare{}
	}
	if s = p.of[namespace]; s == nil {
		s = &pendingShare{room: semaphore.NewWeighted(maxPending), held: map[*pendingHeld]bool{}}
		p.of[namespace] = s
	}
	s.streams++
	return s, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.streams--; s.streams == 0 {
			delete(p.of, namespace)
		}
	}
}

// Try holds n bytes for the stream of ctx, if there is room; more than maxPending count as maxPending. They are held
// until done is called or ctx ends. end must end the stream; it is called if the stream is too slow.
func (s *pendingShare) Try(ctx context.Context, end context.CancelCauseFunc, n int64) (done func(), ok bool) {
	n = min(n, maxPending)
	if !s.room.TryAcquire(n) {
		return nil, false
	}
	return s.hold(ctx, end, n), true
}

// Wait is Try, but waits until there is room. It returns the cause of the end of ctx.
func (s *pendingShare) Wait(ctx context.Context, end context.CancelCauseFunc, n int64) (done func(), err error) {
	n = min(n, maxPending)
	for {
		attempt, cancel := context.WithTimeout(ctx, patience)
		err := s.room.Acquire(attempt, n)
		cancel()
		switch {
		case err == nil:
			return s.hold(ctx, end, n), nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		s.endSlow(time.Now().Add(-patience))
	}
}

// hold records that n bytes are held.
func (s *pendingShare) hold(ctx context.Context, end context.CancelCauseFunc, n int64) (done func()) {
	h := &pendingHeld{since: time.Now(), end: end}
	h.done = sync.OnceFunc(func() {
		s.room.Release(n)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.held, h)
	})
	s.mu.Lock()
	s.held[h] = true
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, h.done)
	return func() {
		stop()
		h.done()
	}
}

// endSlow ends the streams that have held events since before a time.
func (s *pendingShare) endSlow(before time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.held {
		if h.since.Before(before) {
			h.end(errSlow)
		}
	}
}
