package plane

import (
	"context"
	"time"

	"quartet/pkg/journal/snapshot"
)

const (
	// pressedPause is how often evict looks whether memory is short.
	pressedPause = time.Second
	// samplePeriod is the longest time between two settings of the metrics of owners, which are also set after each
	// pass.
	samplePeriod = 10 * time.Second
)

// evicts reports whether the plane's owners can be evicted, and EvictEvery says when.
func (e *Engine[S]) evicts() bool {
	_, ok := any(e.cfg.New()).(snapshot.Resident)
	return ok && e.deps.Eviction != nil && e.deps.EvictEvery > 0
}

// evict evicts owners that are not used, in passes, until ctx ends. If memory is still short after a pass that was
// made because it was short, the next pass evicts all that can be.
func (e *Engine[S]) evict(ctx context.Context) {
	metrics := snapshot.NewEvictionMetrics(e.deps.Metrics, e.cfg.Plane)
	defer func() {
		for _, p := range e.parts.All() {
			metrics.Remove(p.Index())
		}
	}()
	e.setMetrics(metrics)
	last, pressedPasses := e.deps.WaitClock.Now(), 0
	sampled := last
	for {
		timer := e.deps.WaitClock.TimerAt(e.deps.WaitClock.Now().Add(min(pressedPause, e.deps.EvictEvery)))
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}

		// A pass is due after EvictEvery, and each time while memory is short.
		if e.deps.Pressed != nil && e.deps.Pressed() {
			pressedPasses++
		} else {
			pressedPasses = 0
		}
		now := e.deps.WaitClock.Now()
		if pressedPasses > 0 || now.Sub(last) >= e.deps.EvictEvery {
			for _, p := range e.parts.All() {
				// If it fails, the next pass tries again.
				if pressedPasses < 2 {
					_ = p.EvictUnused(ctx)
				} else {
					_ = p.EvictAll(ctx)
				}
			}
			last = e.deps.WaitClock.Now()
		} else if now.Sub(sampled) < samplePeriod {
			continue
		}
		e.setMetrics(metrics)
		sampled = now
	}
}

// setMetrics sets the metrics of owners.
func (e *Engine[S]) setMetrics(metrics *snapshot.EvictionMetrics) {
	for _, p := range e.parts.All() {
		metrics.Set(p.Index(), p.Resident())
	}
}
