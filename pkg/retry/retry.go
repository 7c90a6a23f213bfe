// Package retry provides the pauses between repeated attempts: exponential, with a random part,
// so that many callers do not retry at the same time. The pauses are computed by
// github.com/cenkalti/backoff; the package adds waiting with a context.
package retry

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Pacer waits between attempts. It is not safe for concurrent use.
type Pacer struct{ pauses *backoff.ExponentialBackOff }

// steady is set while pauses have no random part.
var steady atomic.Bool

// Steady removes the random part of the pauses of all Pacers that New makes until restore is called: each pause is
// then three quarters of the longest that it could be. With it a simulation has the same pauses in each run.
func Steady() (restore func()) {
	steady.Store(true)
	return func() { steady.Store(false) }
}

// New returns a Pacer. Its first pause is between half of first and first. Each further one is twice as
// long, up to between half of last and last.
func New(first, last time.Duration) *Pacer {
	b := backoff.NewExponentialBackOff()
	// The library draws from interval ± factor; three quarters ± a third is half to all.
	b.InitialInterval, b.MaxInterval = first*3/4, last*3/4
	b.Multiplier, b.RandomizationFactor = 2, 1.0/3
	if steady.Load() {
		b.RandomizationFactor = 0
	}
	return &Pacer{b}
}

// Reset makes the next pause as short as the first one. Callers use it after an attempt that succeeded.
func (p *Pacer) Reset() { p.pauses.Reset() }

// Next returns the next pause, for a caller that waits for several things at once.
func (p *Pacer) Next() time.Duration { return p.pauses.NextBackOff() }

// Wait waits for the next pause. It returns early, with the cause, when ctx ends.
func (p *Pacer) Wait(ctx context.Context) error {
	t := time.NewTimer(p.Next())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
