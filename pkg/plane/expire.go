package plane

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// There are ten passes within the shortest time for which history is kept, but not more or less often than these
// bounds say: a pass reads what the archive has of that time. The first pass is early, since a process may not run
// for long, and so is the one after a pass that failed.
const (
	minExpirePause   = time.Second
	firstExpirePause = 10 * time.Minute
	maxExpirePause   = 24 * time.Hour
)

// History says how long what has no use any more is kept. Its zero value keeps everything.
type History struct {
	// Default is for how long events are kept of a namespace that is not in Namespaces; 0: always.
	Default time.Duration
	// Namespaces has other times of single namespaces; 0: always.
	Namespaces map[string]time.Duration
}

// Of returns for how long events of a namespace are kept; 0: always.
func (h History) Of(namespace string) time.Duration {
	if d, ok := h.Namespaces[namespace]; ok {
		return d
	}
	return h.Default
}

// Shortest returns the shortest time for which something is kept, 0 if everything is kept.
func (h History) Shortest() time.Duration {
	shortest := h.Default
	for _, d := range h.Namespaces {
		if d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	return shortest
}

// longest returns the longest of the times for which something is kept that is not kept always; 0 if everything is.
func (h History) longest() time.Duration {
	longest := h.Default
	for _, d := range h.Namespaces {
		longest = max(longest, d)
	}
	return longest
}

// cutoffs returns a function that returns, for a namespace, the time before which its events are old; zero if none is.
func (h History) cutoffs(now time.Time) func(namespace string) time.Time {
	return func(namespace string) time.Time {
		if d := h.Of(namespace); d > 0 {
			return now.Add(-d)
		}
		return time.Time{}
	}
}

// expire removes old events of all partitions until ctx ends.
func (e *Engine[S]) expire(ctx context.Context) {
	pause := min(max(e.deps.History.Shortest()/10, minExpirePause), maxExpirePause)
	next := min(pause, firstExpirePause)
	for {
		timer := e.deps.WaitClock.TimerAt(e.deps.WaitClock.Now().Add(next))
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		next = pause
		if err := e.Expire(ctx, e.deps.Clock.Now()); err != nil && ctx.Err() == nil {
			next = min(pause, firstExpirePause)
			e.deps.Logger.Warn("old events are not removed yet; it is tried again", zap.String("plane", e.cfg.Plane),
				zap.Error(err))
		}
	}
}

// Expire removes the events that are old by Deps.History, in all partitions that can be written, with
// journal.Partition.Expire. After an error it continues with the other partitions. It returns all errors, joined.
func (e *Engine[S]) Expire(ctx context.Context, now time.Time) error {
	var errs []error
	for _, p := range e.parts.All() {
		var removed int64
		through, err := e.deps.ReadThrough(ctx, e.cfg.Plane, p.Index())
		if err == nil {
			latest, earliest := now.Add(-e.deps.History.Shortest()), now.Add(-e.deps.History.longest()) // of cutoffs
			removed, err = p.Expire(ctx, e.deps.History.cutoffs(now), latest, earliest, through)
		}
		errs = append(errs, e.expired.recordPass(ctx, p.Index(), removed, err, e.deps.Clock.Now()))
	}
	return errors.Join(errs...)
}
