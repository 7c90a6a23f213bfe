package journal

import (
	"errors"
	"sync"
	"time"
)

// ErrNotHeld is the cause of every refusal of a partition that was closed, or
// whose lease was lost: another process may hold it by now. Whatever is refused
// with it, and not said to have an unknown outcome, stored nothing.
var ErrNotHeld = errors.New("journal: the partition is not held here")

// inbox is the hand-over from handlers to the loop: a slice that is swapped
// and a channel of one slot. A channel of commands costs a lock and a wake-up
// for each command; this costs one wake-up for each batch.
type inbox[S State] struct {
	mu     sync.Mutex
	queue  []*command[S]
	closed bool
	signal chan struct{}
}

// enqueue hands c to the loop.
func (p *Partition[S]) enqueue(c *command[S]) error {
	b := &p.inbox
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return unavailable(outcomeNone, "the partition is not held here", ErrNotHeld)
	case len(b.queue) >= maxQueued:
		b.mu.Unlock()
		return unavailable(outcomeNone, "too many requests are waiting for the journal; try again later", nil)
	}
	b.queue = append(b.queue, c)
	first := len(b.queue) == 1
	b.mu.Unlock()
	if first {
		b.wake()
	}
	return nil
}

func (b *inbox[S]) wake() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// take swaps the queue for an empty one.
func (b *inbox[S]) take(empty []*command[S]) (queue []*command[S], closed bool) {
	b.mu.Lock()
	queue, b.queue = b.queue, empty
	closed = b.closed
	b.mu.Unlock()
	return queue, closed
}

func (b *inbox[S]) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wake()
}

// stallThreshold separates a slow disk from a stall.
const stallThreshold = time.Second

// stall measures how long the journal could not write.
type stall struct {
	mu    sync.Mutex
	since time.Time // zero: nothing is being written
	total time.Duration
}

func (s *stall) begin(now time.Time) {
	s.mu.Lock()
	if s.since.IsZero() {
		s.since = now
	}
	s.mu.Unlock()
}

func (s *stall) end(now time.Time) {
	s.mu.Lock()
	s.total += s.length(now)
	s.since = time.Time{}
	s.mu.Unlock()
}

func (s *stall) length(now time.Time) time.Duration {
	if s.since.IsZero() {
		return 0
	}
	if d := now.Sub(s.since); d >= stallThreshold {
		return d
	}
	return 0
}

func (s *stall) now(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.length(now)
}

func (s *stall) sum(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total + s.length(now)
}
