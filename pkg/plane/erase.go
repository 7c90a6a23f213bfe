package plane

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
)

// There are ten passes within EraseAfter, but not more or less often than these bounds say. A pass that finds deleted
// owners reads the indexes of the partition's archive, and writes a whole snapshot.
const (
	minErasePause = time.Second
	maxErasePause = time.Hour
)

// erase erases what deleted owners had, in all partitions, until ctx ends.
func (e *Engine[S]) erase(ctx context.Context) {
	pause := min(max(e.deps.EraseAfter/10, minErasePause), maxErasePause)
	for {
		timer := e.deps.WaitClock.TimerAt(e.deps.WaitClock.Now().Add(pause))
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if err := e.Erase(ctx, e.deps.Clock.Now().Add(-e.deps.EraseAfter)); err != nil && ctx.Err() == nil {
			e.deps.Logger.Warn("what deleted agents had is not erased yet; it is tried again",
				zap.String("plane", e.cfg.Plane), zap.Error(err))
		}
	}
}

// Erase erases everything of the owners that were deleted before cutoff, in all partitions that can be written, with
// journal.Partition.Erase. After an error it continues with the other partitions. It returns all errors, joined.
func (e *Engine[S]) Erase(ctx context.Context, cutoff time.Time) error {
	var errs []error
	for _, p := range e.parts.All() {
		lines, err := p.Erase(ctx, cutoff, e.eraseElsewhere)
		errs = append(errs, e.erased.recordPass(ctx, p.Index(), lines, err, e.deps.Clock.Now()))
	}
	return errors.Join(errs...)
}

// eraseElsewhere removes what is stored of a deleted owner outside of its partition.
func (e *Engine[S]) eraseElsewhere(ctx context.Context, owner snapshot.Owner) error {
	if e.deps.EraseEvents != nil {
		if err := e.deps.EraseEvents(ctx, e.cfg.Plane, owner.Namespace, owner.ID); err != nil {
			return err
		}
	}
	if e.cfg.Erasing == nil {
		return nil
	}
	return e.cfg.Erasing(ctx, owner.Namespace, owner.ID)
}

// wasErased reports whether a state knows that the agent of an event was erased. One that does not embed
// event.Tombstones knows of none.
func wasErased(s any, ev *journal.Event) bool {
	erasable, ok := s.(interface {
		WasErased(namespace, id string) bool
	})
	return ok && erasable.WasErased(ev.Namespace, ev.AgentID)
}
