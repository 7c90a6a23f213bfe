package sim

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"quartet/pkg/bus"
	"quartet/services/storage/archives"
)

// confirmTerm bounds how long it is waited until what a plane has consumed is durable.
const confirmTerm = 100 * time.Millisecond

// history is how long events are kept that nothing needs; 0 in a world in which all are.
func (w *world) history() time.Duration {
	if w.short && w.eraseAfter() > 0 {
		return 100 * time.Second
	}
	return 0
}

// readThrough is plane.Deps.ReadThrough.
func (w *world) readThrough(ctx context.Context, of string, partition int) (uint64, error) {
	through := uint64(math.MaxUint64)
	for _, name := range archives.Followers[of] {
		if !slices.Contains(w.planes, name) {
			continue // the world has no such service
		}
		// Of several instances that have the plane, because one has taken it over, the lowest position counts.
		known := false
		for _, l := range w.following(name) {
			term, cancel := context.WithTimeout(ctx, confirmTerm)
			for _, p := range l.positions.Durable(term, name, 0) {
				if p.Plane == of && p.Partition == partition {
					through, known = min(through, p.WalSeq), true
				}
			}
			cancel()
		}
		if !known {
			return 0, fmt.Errorf("what %s has read of %s is not known", name, of)
		}
	}
	all := w.events.Messages()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Subject == fmt.Sprintf("%s%s.%d", bus.PositionPrefix, of, partition) {
			end, err := bus.PositionOf(all[i].Header)
			return min(through, end.WalSeq), err
		}
	}
	return 0, nil
}

// following returns the lives of a plane that may follow the others.
func (w *world) following(name string) []*life {
	if w.split() {
		return w.holders(name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.lives[name]; l != nil {
		return []*life{l}
	}
	return nil
}
