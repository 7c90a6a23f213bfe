// Package pending bounds the bytes of events that streams hold and their clients have not received.
package pending

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"quartet/pkg/fault"
)

const (
	// Max is how many bytes of events, as they are in the journal, the streams of a namespace hold at a time
	// that were not received yet. The others wait, without holding anything.
	Max = 16 << 20
	// patience is how long a stream may wait for others of its namespace. After that, those streams are ended that
	// have held events for as long, because their clients do not receive.
	patience = 5 * time.Second
)

// ErrSlow ends a stream that keeps others of its namespace from going on.
var ErrSlow = fault.Overloaded.New("the stream was read too slowly, and other streams of the namespace wait for it; "+
	"open it again from its last cursor", "bound", "reader")

// Bytes counts the bytes of events that the streams of each namespace hold. The zero Bytes is ready to use.
type Bytes struct {
	mu sync.Mutex
	of map[string]*Share
}

// Share is what the streams of one namespace hold.
type Share struct {
	room    *semaphore.Weighted
	streams int // that use it; guarded by Bytes.mu

	mu   sync.Mutex
	held map[*held]bool
}

// held are the events of one frame that a stream holds.
type held struct {
	since time.Time
	end   context.CancelCauseFunc // ends the stream
	done  func()                  // gives the bytes back; further calls do nothing
}

// Open returns the share of a namespace. closed must be called when the stream ends.
func (p *Bytes) Open(namespace string) (s *Share, closed func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]*Share{}
	}
	if s = p.of[namespace]; s == nil {
		s = &Share{room: semaphore.NewWeighted(Max), held: map[*held]bool{}}
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

// Try holds n bytes for the stream of ctx, if there is room; more than Max count as Max. They are held until done is
// called or ctx ends. end must end the stream; it is called if the stream is too slow.
func (s *Share) Try(ctx context.Context, end context.CancelCauseFunc, n int64) (done func(), ok bool) {
	n = min(n, Max)
	if !s.room.TryAcquire(n) {
		return nil, false
	}
	return s.hold(ctx, end, n), true
}

// Wait is Try, but waits until there is room. It returns the cause of the end of ctx.
func (s *Share) Wait(ctx context.Context, end context.CancelCauseFunc, n int64) (done func(), err error) {
	n = min(n, Max)
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
func (s *Share) hold(ctx context.Context, end context.CancelCauseFunc, n int64) (done func()) {
	h := &held{since: time.Now(), end: end}
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
func (s *Share) endSlow(before time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.held {
		if h.since.Before(before) {
			h.end(ErrSlow)
		}
	}
}
