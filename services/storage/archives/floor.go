package archives

import (
	"context"
	"fmt"
	"math"
	"time"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane"
)

// Followers has, by plane, the planes that follow its journal: the inverse of what the planes say in
// plane.Config.Follow. Nothing follows the other planes but EVENTS.
var Followers = map[string][]string{
	"agent":   {"board", "task", "waiting", "work"},
	"task":    {"agent", "waiting"},
	"waiting": {"agent", "work"},
	"work":    {"agent", "waiting"},
}

// confirmTerm bounds how long Consumed waits for writes of one partition.
const confirmTerm = 100 * time.Millisecond

// Consumed returns what a process reports of count partitions of a plane from first on: up to where all of them have
// consumed each journal that they follow. A journal that one of them has not begun to follow is left out. For each
// partition it waits confirmTerm at most for writes that are not durable yet; after that it takes what is durable.
func Consumed(positions *plane.Positions, name string, first, count int) []*identityv1.ConsumedSource {
	var out []*identityv1.ConsumedSource
	for i := first; i < first+count; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), confirmTerm)
		of := map[plane.Position]uint64{} // by source
		var next []*identityv1.ConsumedSource
		for _, p := range positions.Durable(ctx, name, i) {
			of[plane.Position{Plane: p.Plane, Partition: p.Partition}] = p.WalSeq
			if i == first {
				next = append(next, &identityv1.ConsumedSource{
					Plane: p.Plane, Partition: int32(p.Partition),
					WalSeq: p.WalSeq,
				})
			}
		}
		cancel()
		for _, c := range out {
			if walSeq, known := of[plane.Position{Plane: c.GetPlane(), Partition: int(c.GetPartition())}]; known {
				c.WalSeq = min(c.GetWalSeq(), walSeq)
				next = append(next, c)
			}
		}
		out = next
	}
	return out
}

// Floor knows up to where the journals of an installation were read.
type Floor struct {
	// List returns the processes that reported themselves lately.
	List func(ctx context.Context) ([]*identityv1.Process, error)
	// Units returns in how many parts processes hold a plane: its partitions, or 1 if it is held as a whole.
	Units func(plane string) int
	// Copied returns the wal_seq up to which EVENTS has the journal of a partition. An error means that it is not
	// known. nil: events are not copied.
	Copied func(ctx context.Context, plane string, partition int) (uint64, error)
}

// ReadThrough returns the wal_seq up to which the journal of a partition was consumed by all planes that follow it, and
// copied to EVENTS; math.MaxUint64 if nothing follows it. It returns an error if that is not known. It is
// plane.Deps.ReadThrough.
func (f Floor) ReadThrough(ctx context.Context, name string, partition int) (uint64, error) {
	through := uint64(math.MaxUint64)
	if names := Followers[name]; len(names) > 0 {
		all, err := f.List(ctx)
		if err != nil {
			return 0, fmt.Errorf("what other planes have read of %s partition %d is not known: %w", name, partition,
				err)
		}
		for _, follower := range names {
			for unit := range f.Units(follower) {
				consumed, err := consumedBy(all, follower, unit, name, partition)
				if err != nil {
					return 0, err
				}
				through = min(through, consumed)
			}
		}
	}
	if f.Copied == nil {
		return through, nil
	}
	copied, err := f.Copied(ctx, name, partition)
	if err != nil {
		return 0, err
	}
	return min(through, copied), nil
}

// consumedBy returns what a follower's partition has consumed of a source. If several processes report that they hold
// it, because one has taken it over, the lowest position counts.
func consumedBy(all []*identityv1.Process, follower string, unit int, source string, partition int) (uint64, error) {
	through, held, known := uint64(math.MaxUint64), false, false
	for _, p := range all {
		for _, h := range p.GetHeld() {
			if h.GetPlane() != follower || int(h.GetPartition()) != unit {
				continue
			}
			held = true
			for _, c := range h.GetConsumed() {
				if c.GetPlane() == source && int(c.GetPartition()) == partition {
					through, known = min(through, c.GetWalSeq()), true
				}
			}
		}
	}
	switch {
	case !held:
		return 0, fmt.Errorf("what plane %s partition %d has read is not known: no process reports that it holds it",
			follower, unit)
	case !known:
		return 0, fmt.Errorf("what plane %s partition %d has read of %s partition %d is not known: the process that "+
			"holds it reports no position", follower, unit, source, partition)
	}
	return through, nil
}
