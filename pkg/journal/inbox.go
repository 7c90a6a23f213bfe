package journal

import (
	"sync"

	"quartet/pkg/journal/refusal"
)

// ErrNotHeld is the cause of every refusal of a partition that was closed or whose lease was lost, so that
// another process may hold it. A command that is refused with it stored nothing, unless its outcome is unknown.
var ErrNotHeld = refusal.ErrNotHeld

// inbox passes commands from handlers to the loop: a slice that the loop swaps, and a channel of one slot. A
// channel of commands takes a lock and a wake-up for each command; this takes one wake-up for each batch.
type inbox[S State] struct {
	mu     sync.Mutex
	queue  []*command[S]
	closed bool
	signal chan struct{}
}

// enqueue queues c for the loop. It does not block; it refuses c when the partition is closed or maxQueued
// commands are waiting.
func (p *Partition[S]) enqueue(c *command[S]) error {
	b := &p.inbox
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return p.refusal()
	case len(b.queue) >= maxQueued:
		b.mu.Unlock()
		return refusal.Unavailable(refusal.None, "too many requests are waiting for the journal; try again later", nil)
	}
	b.queue = append(b.queue, c)
	first := len(b.queue) == 1
	b.mu.Unlock()
	if first {
		b.wake()
	}
	return nil
}

// wake makes the loop take the queue. It does not block.
func (b *inbox[S]) wake() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// take returns the queue and replaces it with empty.
func (b *inbox[S]) take(empty []*command[S]) (queue []*command[S], closed bool) {
	b.mu.Lock()
	queue, b.queue = b.queue, empty
	closed = b.closed
	b.mu.Unlock()
	return queue, closed
}

// close refuses further commands; those in the queue stay.
func (b *inbox[S]) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wake()
}
