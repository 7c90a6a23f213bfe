package journal

import (
	"context"
	"time"
)

// frameOutcome is the outcome of a frame, or of a pending reload. It is resolved exactly once, by the loop.
type frameOutcome struct {
	done   chan struct{}
	lost   bool
	hidden bool
}

// newFrameOutcome returns an outcome that is not resolved.
func newFrameOutcome() *frameOutcome { return &frameOutcome{done: make(chan struct{})} }

// newHiddenOutcome returns an unresolved outcome for a state that may be wrong: until it is resolved, no View may show
// the state, not even under Ahead.
func newHiddenOutcome() *frameOutcome { return &frameOutcome{done: make(chan struct{}), hidden: true} }

// Hidden reports whether the state must not be shown before the outcome is resolved.
func (r *frameOutcome) Hidden() bool { return r.hidden }

// Lost reports whether the state that contained the frame was discarded, so that it must be read again. It must be
// called only once the outcome is resolved.
func (r *frameOutcome) Lost() bool { return r.lost }

// Wait blocks until the outcome is resolved, and returns nil then. After timeout, or when ctx ends, it returns
// UNAVAILABLE.
func (r *frameOutcome) Wait(ctx context.Context, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-r.done:
		return nil
	case <-timer.C:
		return unavailable(outcomeNone, "the journal could not be written for "+timeout.String()+
			", so its state cannot be shown; try again", nil)
	case <-ctx.Done():
		return unavailable(outcomeNone, "the deadline passed before the state that was read was durable",
			ctx.Err())
	}
}

// Done is closed when the outcome is resolved.
func (r *frameOutcome) Done() <-chan struct{} { return r.done }

// Resolve records that the state with the frame is durable. Either it or ResolveLost must be called once, by the loop.
func (r *frameOutcome) Resolve() { close(r.done) }

// ResolveLost records that the state with the frame was discarded.
func (r *frameOutcome) ResolveLost() {
	r.lost = true
	close(r.done)
}
