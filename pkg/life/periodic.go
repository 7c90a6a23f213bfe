package life

import (
	"context"
	"time"
)

// Every calls f at once and then every period, until ctx ends. A call that takes longer than
// a period delays the next one.
func Every(ctx context.Context, period time.Duration, f func(context.Context)) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for ctx.Err() == nil {
		f(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// Periodic is a Service that repeats a function while it runs. It is always ready.
type Periodic struct {
	Label  string
	Period time.Duration
	Do     func(ctx context.Context) // its context ends when Stop is called

	stop context.CancelFunc
	done chan struct{}
}

// Name returns the Label.
func (p *Periodic) Name() string { return p.Label }

// Start begins to call Do, as Every does.
func (p *Periodic) Start(ctx context.Context) error {
	ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		Every(ctx, p.Period, p.Do)
	}()
	return nil
}

// Stop ends the calls of Do, and waits until the one that is running has returned. Start must have been called.
func (p *Periodic) Stop(context.Context) error {
	p.stop()
	<-p.done
	return nil
}

// Ready returns nil.
func (p *Periodic) Ready() error { return nil }
