package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/snapshot"
)

// shortened returns the streams, sorted by name, of the snapshots of partitions from whose journals old events were
// removed, because the state of such a partition cannot be built from its journal alone. The catalogs of archives say
// which partitions these are, and jetlog.RestoredSnapshots says it of those whose events were removed before a restore.
func shortened(ctx context.Context, js jetstream.JetStream, archives map[string][]archived) (names []string,
	err error,
) {
	if names, err = jetlog.RestoredSnapshots(ctx, js); err != nil {
		return nil, err
	}
	for _, parts := range archives {
		for _, p := range parts {
			if p.GetRemovedLines() > 0 {
				names = append(names, jetlog.SnapshotStream(p.of.Plane, p.of.Partition))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// snapshots copies the stream of a partition's snapshots. It returns an error if there is none from before the
// moment, or if one of these was removed while the stream was copied.
func (c *copying) snapshots(ctx context.Context, name, plane string, partition int) error {
	if c.deps.Snapshots == nil {
		return errors.New("it is needed, and where snapshots are stored is not known")
	}
	store, err := c.deps.Snapshots(plane, partition)
	if err != nil {
		return err
	}
	stored := func() (numbers []uint64, err error) {
		all, err := snapshot.Stored(ctx, store, framelog.PartitionName(plane, partition))
		for _, s := range all {
			if s.Number <= c.moment.ends[name].seq {
				numbers = append(numbers, s.Number)
			}
		}
		return numbers, err
	}
	before, err := stored()
	if err != nil {
		return err
	}
	if err := copyStream(ctx, c.js, name, c.moment, c.write); err != nil {
		return err
	}
	after, err := stored()
	if err == nil && (len(after) == 0 || !slices.Equal(before, after)) {
		err = fmt.Errorf("snapshots were replaced while they were copied: %d of %d are left", len(after), len(before))
	}
	return err
}
