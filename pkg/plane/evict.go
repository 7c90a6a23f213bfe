package plane

import (
	"context"
	"time"
)

// pressedPause is how often it is looked whether memory is short.
const pressedPause = time.Second

// evict lets owners leave memory that are not used, until ctx ends. If memory stays short after a pass, the next one evicts all that can be.
func (e *Engine[S]) evict(ctx context.Context) {
	last, short := e.deps.WaitClock.Now(), 0
	for {
		timer := e.deps.WaitClock.TimerAt(e.deps.WaitClock.Now().Add(min(pressedPause, e.deps.EvictEvery)))
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if e.deps.Pressed != nil && e.deps.Pressed() {
			short++
		} else if short = 0; e.deps.WaitClock.Now().Sub(last) < e.deps.EvictEvery {
			continue
		}
		for _, p := range e.parts.All() {
			_ = p.Evict(ctx, short < 2) // what failed is tried at the next pass
		}
		last = e.deps.WaitClock.Now()
	}
}
