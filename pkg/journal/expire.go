package journal

import (
	"context"
	"time"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/snapshot"
)

// Expire removes events from the archive, and returns how many: those older than cutoffOf(namespace), up to the wal_seq
// through, that the state does not need. Of a frame without other events only its end is left. cutoffOf returns zero
// for a namespace of which all is kept, and the default for "", the journal's own events; latest and earliest bound
// its other results. Nothing is removed unless the newest snapshot can be read, since the log alone does not lead to
// the state any more. Without an archive, snapshots or a Retaining state, Expire returns 0. Calls may be repeated, and
// must not overlap.
func (p *Partition[S]) Expire(ctx context.Context, cutoffOf func(namespace string) time.Time,
	latest, earliest time.Time,
	through uint64,
) (int64, error) {
	if _, ok := any(p.cfg.New()).(Retaining); !ok || !p.roller.Archives() || p.cfg.Snapshots == nil {
		return 0, nil
	}
	_, stateSeq, err := View(ctx, p, func(S) (struct{}, error) { return struct{}{}, nil })
	if err != nil {
		return 0, err
	}

	expired := func(line []byte) (bool, error) {
		raw, err := ParseLine(line)
		if err != nil || raw.Type == TypeIncarnationBegan || raw.Type == event.TypeOwnerErased {
			return false, nil //nolint:nilerr // what cannot be read is kept
		}
		cutoff := cutoffOf(raw.Namespace)
		if cutoff.IsZero() || !raw.CreatedAt.Before(cutoff) {
			return false, nil
		}
		ev, err := raw.Decode(p.cfg.Registry)
		if err != nil || Internal(raw.Type) {
			return err == nil, nil //nolint:nilerr // what cannot be read is kept, an event of the journal itself is not
		}
		needed, _, err := View(ctx, p, func(s S) (bool, error) { return any(s).(Retaining).Needs(ev, cutoff), nil })
		return err == nil && !needed, err
	}
	return p.roller.Expire(ctx, archive.Expiry{
		Before: latest, All: earliest, Through: through, State: stateSeq, Line: expired,
		Ready: func() error {
			return snapshot.Verify(ctx, p.cfg.Snapshots, framelog.PartitionName(p.cfg.Plane, p.cfg.Partition))
		},
	})
}
