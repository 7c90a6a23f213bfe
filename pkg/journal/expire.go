package journal

import (
	"context"
	"time"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/snapshot"
)

// Expire removes events from the archive that are older than before says for their namespace, unless the state needs them; of frames without
// other events nothing is left but where they end. before returns zero for a namespace of which everything is kept, and for the empty one, that
// of the journal's own events, whatever is kept where nothing else is said. latest and earliest are the latest and the earliest time that it
// returns but for zero. Events behind through are kept. Nothing is removed unless the newest snapshot can be read: the log alone does not lead to
// the state any more. It returns how many events were removed. It may be repeated; there must be at most one call at a time.
func (p *Partition[S]) Expire(ctx context.Context, before func(namespace string) time.Time, latest, earliest time.Time, through uint64) (int64, error) {
	if _, ok := any(p.cfg.New()).(Retaining); !ok || !p.roller.Archives() || p.cfg.Snapshots == nil {
		return 0, nil
	}
	_, state, err := View(ctx, p, func(S) (struct{}, error) { return struct{}{}, nil })
	if err != nil {
		return 0, err
	}
	old := func(line []byte) (bool, error) {
		raw, err := ParseLine(line)
		if err != nil || raw.Type == TypeIncarnationBegan || raw.Type == event.TypeOwnerErased {
			return false, nil //nolint:nilerr // what cannot be read is kept
		}
		at := before(raw.Namespace)
		if at.IsZero() || !raw.CreatedAt.Before(at) {
			return false, nil
		}
		ev, err := raw.Decode(p.cfg.Registry)
		if err != nil || Internal(raw.Type) {
			return err == nil, nil //nolint:nilerr // as above
		}
		needed, _, err := View(ctx, p, func(s S) (bool, error) { return any(s).(Retaining).Needs(ev, at), nil })
		return err == nil && !needed, err
	}
	return p.roller.Expire(ctx, archive.Expiry{Before: latest, All: earliest, Through: through, State: state, Line: old, Ready: func() error {
		return snapshot.Verify(ctx, p.cfg.Snapshots, framelog.PartitionName(p.cfg.Plane, p.cfg.Partition))
	}})
}
