package journal

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/snapshot"
)

// Expire removes events from the archive that are older than before says for their namespace, unless the state needs them; of frames without
// other events nothing is left but where they end. before returns zero for a namespace of which everything is kept, and for the empty one, that
// of the journal's own events, whatever is kept where nothing else is said. Segments are looked at that were archived
// before latest, and whose events are none behind through. Nothing is removed unless the newest snapshot can be read: the log alone does not
// lead to the state any more. It returns how many events were removed. It may be repeated; there must be at most one call at a time.
func (p *Partition[S]) Expire(ctx context.Context, before func(namespace string) time.Time, latest time.Time, through uint64) (int64, error) {
	if _, ok := any(p.cfg.New()).(Retaining); !ok || !p.roller.Archives() || p.cfg.Snapshots == nil {
		return 0, nil
	}
	if err := snapshot.Verify(ctx, p.cfg.Snapshots, framelog.PartitionName(p.cfg.Plane, p.cfg.Partition)); err != nil {
		return 0, fmt.Errorf("journal: no old events of %s/%d are removed: the newest snapshot cannot be read: %w", p.cfg.Plane, p.cfg.Partition, err)
	}
	var failed error
	lines, err := p.roller.Expire(ctx, latest, through, func(line []byte) bool {
		raw, err := ParseLine(line)
		if err != nil || failed != nil || raw.Type == TypeIncarnationBegan || raw.Type == event.TypeOwnerErased {
			return false
		}
		at := before(raw.Namespace)
		if at.IsZero() || !raw.CreatedAt.Before(at) {
			return false
		}
		ev, err := raw.Decode(p.cfg.Registry)
		if err != nil || Internal(raw.Type) {
			return err == nil
		}
		needed, _, err := View(ctx, p, func(s S) (bool, error) { return any(s).(Retaining).Needs(ev, at), nil }) //nolint:errcheck // it was checked
		failed = err
		return err == nil && !needed
	})
	if err == nil {
		err = failed
	}
	p.cfg.Logger.Debug("journal: old events are removed", zap.Int64("lines", lines), zap.Error(err))
	return lines, err
}
