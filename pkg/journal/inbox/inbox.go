// Package inbox passes commands from handlers to the loop of a partition.
package inbox

import (
	"errors"
	"sync"
)

var (
	// ErrClosed means that an Inbox takes nothing any more.
	ErrClosed = errors.New("inbox: closed")
	// ErrFull means that an Inbox holds as much as it may.
	ErrFull = errors.New("inbox: full")
)

// Inbox is a slice that the loop swaps, and a channel of one slot. A channel of commands takes a lock and a wake-up for
// each command; this takes one wake-up for each batch.
type Inbox[C any] struct {
	mu     sync.Mutex
	queue  []C
	most   int
	closed bool
	signal chan struct{}
}

// New returns an Inbox that holds at most so many commands.
func New[C any](most int) *Inbox[C] {
	return &Inbox[C]{most: most, signal: make(chan struct{}, 1)}
}

// Signal returns a channel that has a value when there are commands to take, or when the Inbox was closed.
func (b *Inbox[C]) Signal() <-chan struct{} { return b.signal }

// Put queues c for the loop. It does not block; its error is ErrClosed or ErrFull.
func (b *Inbox[C]) Put(c C) error {
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return ErrClosed
	case len(b.queue) >= b.most:
		b.mu.Unlock()
		return ErrFull
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
func (b *Inbox[C]) wake() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// Take returns the queued commands, and whether the Inbox was closed. The slice empty, of length 0, becomes the
// queue.
func (b *Inbox[C]) Take(empty []C) (queue []C, closed bool) {
	b.mu.Lock()
	queue, b.queue = b.queue, empty
	closed = b.closed
	b.mu.Unlock()
	return queue, closed
}

// Close refuses further commands; those in the queue stay.
func (b *Inbox[C]) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wake()
}
