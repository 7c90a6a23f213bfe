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

// newFrameOutcome returns a Result that is not resolved.
func newFrameOutcome() *frameOutcome { return &frameOutcome{done: make(chan struct{})} }

// newHiddenOutcome is New for a state that may be wrong and must not be shown, not even to a View under journal.Ahead.
func newHiddenOutcome() *frameOutcome { return &frameOutcome{done: make(chan struct{}), hidden: true} }

// Hidden reports whether the state must not be shown before the Result is resolved.
func (r *frameOutcome) Hidden() bool { return r.hidden }

// Lost reports whether the state that contained the frame was discarded, so that it must be read again. It must be
// called only once the Result is resolved.
func (r *frameOutcome) Lost() bool { return r.lost }

// Wait blocks until the Result is resolved. After most, or when ctx ends, it returns UNAVAILABLE.
func (r *frameOutcome) Wait(ctx context.Context, most time.Duration) error {
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case <-r.done:
		return nil
	case <-patience.C:
		return unavailable(outcomeNone, "the journal could not be written for "+most.String()+
			", so its state cannot be shown; try again", nil)
	case <-ctx.Done():
		return unavailable(outcomeNone, "the deadline passed before the state that was read was durable",
			ctx.Err())
	}
}

// Done is closed when the Result is resolved.
func (r *frameOutcome) Done() <-chan struct{} { return r.done }

// Resolve resolves the Result; lost is what Lost returns from then on. It must be called once, by the loop.
func (r *frameOutcome) Resolve(lost bool) {
	r.lost = lost
	close(r.done)
}
