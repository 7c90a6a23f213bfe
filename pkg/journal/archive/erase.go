package archive

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"quartet/pkg/journal/framelog"
)

// Erasing says which lines are to be erased.
type Erasing struct {
	// Line reports whether a line is to be erased.
	Line func(line []byte) bool
	// Owner reports whether lines of an agent may be among them. A segment whose index lists no such agent is not read.
	// nil: all segments are read.
	Owner func(namespace, agentID string) bool
	// Old says that the lines are erased because they are old. Then frames without other lines are removed: in place of
	// consecutive ones there is one framelog.Frame whose Removed says where they end.
	Old bool
}

// Erase stores the segment with a number again without some lines, reads back what was stored, puts it into the
// catalog in place of the one with these lines, and removes the latter from the store. It returns the catalog then, and
// how many lines were erased; c and 0 if there were none. If another process replaced the catalog, or removed what was
// stored (see Clean), the error is ErrReplaced. If only the removal failed, the catalog is returned with the error;
// what is left is removed by Clean.
func (c *Catalog) Erase(ctx context.Context, store Store, number uint64, what Erasing) (*Catalog, int64, error) {
	i := slices.IndexFunc(c.Segments, func(s Segment) bool { return s.GetNumber() == number })
	if i < 0 {
		return c, 0, nil
	}
	s := c.Segments[i]
	found, err := s.hasLine(ctx, store, what)
	if err != nil || !found {
		return c, 0, err
	}

	// Store it again without them.
	frames := &erasing{segment: s, store: store, what: what, removed: s.GetRemovedLines()}
	next, err := c.write(ctx, store, s.Before, frames, framelog.Segment{
		Number: number, First: s.GetFirst(),
		Shared: s.GetShared(),
	}, s.GetArchivedAt().AsTime(), &frames.removed)
	if err == nil {
		err = next.Verify(ctx, store)
	}
	if err != nil {
		return c, 0, err
	}

	// Replace it in the catalog.
	segments := slices.Clone(c.Segments)
	segments[i] = next
	if err := c.replace(ctx, store, segments); err != nil {
		return c, 0, err
	}
	replaced, err := Read(ctx, store, c.Partition)
	if err != nil {
		return c, 0, err
	}

	// Verify that it is still stored: another process may have removed it before it was in the catalog.
	names, err := store.Names(ctx)
	if err != nil {
		return c, 0, err
	}
	if _, stored := names[next.GetName()]; !stored {
		// The segment as it was is still there, so put that back.
		if err := replaced.replace(ctx, store, c.Segments); err != nil {
			return c, 0, err
		}
		return c, 0, fmt.Errorf("%w: segment %d of %s was removed while it was stored again", ErrReplaced, number,
			c.Partition)
	}
	return replaced, frames.erased, store.Remove(ctx, s.GetName())
}

// hasLine reports whether a segment has a line that what erases. It reads the frames only if the index does not exclude
// that.
func (s Segment) hasLine(ctx context.Context, store Store, what Erasing) (found bool, err error) {
	if what.Owner != nil {
		x, err := s.Index(ctx, store)
		if err != nil || x.GetListsOwners() && !anyOwner(x, what.Owner) {
			return false, err
		}
	}
	err = s.Scan(ctx, store, 0, func(_ uint64, f framelog.Frame) error {
		if _, n := f.Erase(1, what.Line); n > 0 { // any wal_seq will do, since only the number is used
			found = true
			return errFound
		}
		return ctx.Err()
	})
	if found {
		return true, nil
	}
	return false, err
}

// erasing is a framelog.Log of an archived segment without the lines that are to be erased. Only Scan may be called.
type erasing struct {
	framelog.Log
	segment Segment
	store   Store
	what    Erasing
	erased  int64        // lines
	removed int64        // lines, now and before, because they were old
	before  framelog.End // before the consecutive frames without lines that were read last
	hollow  framelog.End // behind these frames; zero if there are none or they were passed to fn as one
}

// Scan implements framelog.Log.
func (l *erasing) Scan(ctx context.Context, _ uint64, fn func(uint64, framelog.Frame) error) error {
	end := l.segment.Before
	x, err := l.segment.Index(ctx, l.store)
	if err != nil {
		return err
	}
	// passHollow passes a Frame that stands for the collected frames to fn, if there are any.
	passHollow := func() error {
		if l.hollow.Seq == 0 {
			return nil
		}
		f := framelog.Removed(l.before, l.hollow)
		l.hollow = framelog.End{}
		return fn(f.Removed.Seq, f)
	}
	err = l.segment.Scan(ctx, l.store, 0, func(seq uint64, f framelog.Frame) error {
		next, _, err := end.Next(x.GetPartition(), seq, f) // Segment.Scan has verified the lines
		if err != nil {
			return err
		}
		first := end.WalSeq + 1
		if f.Link.First > 0 { // a new incarnation leaves wal_seqs out; a frame of format 0 does not have First
			first = f.Link.First
		}
		f, n := f.Erase(first, l.what.Line)
		previous := end
		end, l.erased = next, l.erased+int64(n)

		// Collect consecutive frames without any line left, and pass them to fn as one. Frames that stand for removed
		// ones, and those that never had lines, are among them.
		if l.what.Old {
			l.removed += int64(n)
			if f.Hollow() {
				if l.hollow.Seq == 0 {
					l.before = previous
				}
				l.hollow = next
				return nil
			}
		}
		if err := passHollow(); err != nil {
			return err
		}
		return fn(seq, f)
	})
	if err == nil {
		err = passHollow()
	}
	if err == nil {
		err = errSegmentEnds // the segment has no other frames, even if none of them closes it
	}
	return err
}

// Clean removes what is stored of archived segments under other names than that in the catalog: of the catalog as it
// is stored by then, since another process may have replaced c. It leaves segments that are not in the catalog.
func (c *Catalog) Clean(ctx context.Context, store Store) error {
	names, err := store.Names(ctx)
	if err != nil {
		return err
	}
	// Read the catalog after the names, so that it has each segment that was put into it before.
	c, err = Read(ctx, store, c.Partition)
	if err != nil {
		return err
	}
	for _, s := range c.Segments {
		delete(names, s.GetName())
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !c.Has(names[name]) {
			continue // another process may be about to put it into the catalog
		}
		if err := store.Remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Rewritten reports whether reading the segment s of c failed with err because lines of it were erased meanwhile: the
// catalog that is stored now has the segment under another name. The reader should continue with that catalog.
func (c *Catalog) Rewritten(ctx context.Context, store Store, s Segment, err error) bool {
	if !errors.Is(err, ErrNoObject) {
		return false
	}
	current, err := Read(ctx, store, c.Partition)
	if err != nil {
		return false
	}
	i := slices.IndexFunc(current.Segments, func(other Segment) bool { return other.GetNumber() == s.GetNumber() })
	return i >= 0 && current.Segments[i].GetName() != s.GetName()
}
