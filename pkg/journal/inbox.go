package journal

import (
	"errors"
	"sync"
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
