package archive

import (
	"context"
	"maps"
	"slices"
	"time"

	"quartet/pkg/journal/framelog"
)

// Stored returns the segments of a partition that are stored completely, in the catalog or not, by name, as their
// indexes describe them. It does not read their frames. unreadable has the errors of those whose index cannot be
// read, by name.
func Stored(ctx context.Context, store Store, partition string) (segments map[string]Segment,
	unreadable map[string]error, err error,
) {
	names, err := store.Names(ctx)
	if err != nil {
		return nil, nil, err
	}
	segments, unreadable = map[string]Segment{}, map[string]error{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if s, err := storedSegment(ctx, store, partition, name); err != nil {
			unreadable[name] = err
		} else {
			segments[name] = s
		}
	}
	return segments, unreadable, ctx.Err()
}

// Write stores a segment again, with frames that continue the log of a partition behind an end, and reads back what was
// stored. The segment is not in the catalog until Replace puts it there.
func Write(ctx context.Context, store Store, partition string, before framelog.End, seg framelog.Segment,
	frames []Frame, now time.Time,
) (Segment, error) {
	c := &Catalog{Partition: partition}
	s, err := c.write(ctx, store, before, frameLog{frames: frames}, seg, now, new(int64))
	if err == nil {
		err = s.Verify(ctx, store)
	}
	return s, err
}

// Copy stores a segment that is in another archive of the partition and follows those of the catalog, reads back what
// was stored, and puts it into the catalog. It returns the new catalog. If another process was faster, the error is
// ErrReplaced.
func (c *Catalog) Copy(ctx context.Context, store Store, s Segment, from Store) (*Catalog, error) {
	// An erasing that erases nothing reads the segment and ends at its last frame.
	frames := &erasing{segment: s, store: from, what: Erasing{Line: func([]byte) bool { return false }}}
	removed := s.GetRemovedLines()
	copied, err := c.write(ctx, store, s.Before, frames, framelog.Segment{
		Number: s.GetNumber(), First: s.GetFirst(), Shared: s.GetShared(),
	}, s.GetArchivedAt().AsTime(), &removed)
	if err == nil {
		err = copied.Verify(ctx, store)
	}
	if err == nil {
		err = c.replace(ctx, store, append(slices.Clone(c.Segments), copied))
	}
	if err != nil {
		return nil, err
	}
	return Read(ctx, store, c.Partition)
}

// frameLog is a framelog.Log of the given frames. Only Scan may be called.
type frameLog struct {
	framelog.Log
	frames []Frame
}

// Scan implements framelog.Log. After the last frame it returns errSegmentEnds, as if that frame always closed a
// segment.
func (l frameLog) Scan(_ context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	for _, f := range l.frames {
		if f.Seq < from {
			continue
		}
		if err := fn(f.Seq, f.Frame); err != nil {
			return err
		}
	}
	return errSegmentEnds // the segment has no other frames, even if none of them closes it
}

// Replace stores a catalog with some segments, in order, in place of the one with a version, damaged or not. It returns
// ErrReplaced if there is another one. Where segments do not continue each other, the log has frames of which there is
// no copy.
func Replace(ctx context.Context, store Store, partition string, version uint64, segments []Segment) (*Catalog, error) {
	c := &Catalog{Partition: partition, version: version}
	if err := c.replace(ctx, store, segments); err != nil {
		return nil, err
	}
	return Read(ctx, store, partition)
}
