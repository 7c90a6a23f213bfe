package journal

import (
	"errors"

	"quartet/pkg/journal/inbox"
	"quartet/pkg/journal/refusal"
)

// enqueue queues c for the loop. It does not block; it refuses c when the partition is closed or maxQueued
// commands are waiting.
func (p *Partition[S]) enqueue(c *command[S]) error {
	switch err := p.inbox.Put(c); {
	case errors.Is(err, inbox.ErrClosed):
		return p.refusal()
	case err != nil:
		return refusal.Unavailable(refusal.None, "too many requests are waiting for the journal; try again later", nil)
	}
	return nil
}

// ErrNotHeld is refusal's.
var ErrNotHeld = refusal.ErrNotHeld
