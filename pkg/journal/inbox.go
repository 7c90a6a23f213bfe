package journal

import (
	"errors"
	"sync"
)

var (
	// errInboxClosed means that an inbox takes nothing any more.
	errInboxClosed = errors.New("inbox: closed")
	// errInboxFull means that an inbox holds as much as it may.
	errInboxFull = errors.New("inbox: full")
)

// inbox is a slice that the loop swaps, and a channel of one slot. A channel of commands takes a lock and a wake-up for
// each command; this takes one wake-up for each batch.
type inbox[C any] struct {
	mu        sync.Mutex
	queue     []C
	maxQueued int
	closed    bool
	signal    chan struct{}
}

// newInbox returns an inbox that holds at most maxQueued commands.
func newInbox[C any](maxQueued int) *inbox[C] {
	return &inbox[C]{maxQueued: maxQueued, signal: make(chan struct{}, 1)}
}

// Signal returns a channel that has a value when there are commands to take, or when the inbox was closed.
func (b *inbox[C]) Signal() <-chan struct{} { return b.signal }

// Put queues c for the loop. It does not block; its error is errInboxClosed or errInboxFull.
func (b *inbox[C]) Put(c C) error {
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return errInboxClosed
	case len(b.queue) >= b.maxQueued:
		b.mu.Unlock()
		return errInboxFull
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
func (b *inbox[C]) wake() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// Take returns the queued commands, and whether the inbox was closed. The slice empty, of length 0, becomes the
// queue.
func (b *inbox[C]) Take(empty []C) (queue []C, closed bool) {
	b.mu.Lock()
	queue, b.queue = b.queue, empty
	closed = b.closed
	b.mu.Unlock()
	return queue, closed
}

// Close refuses further commands; those in the queue stay.
func (b *inbox[C]) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wake()
}

// enqueue queues c for the loop. It does not block; it refuses c when the partition is closed or maxQueued
// commands are waiting.
func (p *Partition[S]) enqueue(c *command[S]) error {
	err := p.inbox.Put(c)
	switch {
	case errors.Is(err, errInboxClosed):
		return p.refusal()
	case err != nil:
		return unavailable(outcomeNone, "too many requests are waiting for the journal; try again later", nil)
	}
	return nil
}
