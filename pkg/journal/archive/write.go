package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal/framelog"
	archivev1 "quartet/pkg/pb/quartet/archive/v1"
)

// errClosed ends the reading of a segment at the frame that closes it, or behind which the log goes on in another one:
// a repair that accepts a loss cuts a segment, and begins a new incarnation in another one.
var errClosed = errors.New("archive: the segment is closed")

// Add stores the segment seg of a log, which must be closed and follow those in the catalog, reads back what was
// stored, and puts it into the catalog. It returns the new catalog. If another process was faster, the error is
// ErrReplaced.
func (c *Catalog) Add(ctx context.Context, store Store, log framelog.Log, seg framelog.Segment, now time.Time) (
	*Catalog, error,
) {
	s, err := c.write(ctx, store, c.End(), log, seg, now, new(int64))
	if err != nil {
		return nil, err
	}
	if err := s.Verify(ctx, store); err != nil {
		return nil, err
	}
	segments := append(slices.Clone(c.Segments), s)
	if err := c.replace(ctx, store, segments); err != nil {
		return nil, err
	}
	return Read(ctx, store, c.Partition)
}

// write stores a segment that begins behind an end of the log. *removed is read after log was scanned; it is how many
// lines of the segment were removed so far.
func (c *Catalog) write(ctx context.Context, store Store, before framelog.End, log framelog.Log, seg framelog.Segment,
	now time.Time, removed *int64,
) (Segment, error) {
	if before.Seq > 0 && before.Segment > seg.Number {
		return Segment{}, fmt.Errorf("archive: segment %d of %s does not follow what is archived, which ends before "+
			"segment %d", seg.Number, c.Partition, before.Segment)
	}
	d, err := store.Begin(ctx, seg.Number)
	if err != nil {
		return Segment{}, err
	}
	defer d.Close()
	enc, err := newEncoder(c.Partition, before)
	if err != nil {
		return Segment{}, err
	}
	defer func() { _ = enc.zstd.Close() }()
	row := &archivev1.Segment{
		Number: seg.Number, Shared: seg.Shared, First: seg.First, Before: before.String(),
		ArchivedAt: timestamppb.New(now),
	}
	x := &archivev1.Index{Partition: c.Partition, Segment: row}
	var stored int64
	var of owners
	put := func() error {
		last := enc.end.Seq
		b, begins, err := enc.finish()
		if err != nil || b == nil {
			return err
		}
		at, err := d.Add(ctx, b)
		if err != nil {
			return err
		}
		o := object(at, b)
		o.Before, o.Last = begins.String(), last
		x.Objects, stored = append(x.Objects, o), stored+o.GetBytes()
		return nil
	}
	err = log.Scan(ctx, max(before.Seq+1, seg.First), func(seq uint64, f framelog.Frame) error {
		if row.GetFrames() > 0 && elsewhere(f, enc.end, seg.Number) {
			if _, _, err := enc.end.Next(c.Partition, seq, f); err != nil {
				return err
			}
			return errClosed
		}
		if enc.full(len(f.Body)) {
			if err := put(); err != nil {
				return err
			}
		}
		if err := enc.add(seq, f); err != nil {
			return err
		}
		of.add(f.Body)
		row.Frames, row.Bytes = row.GetFrames()+1, row.GetBytes()+int64(len(f.Body))
		if f.Link.Next > 0 || f.Removed.Segment > seg.Number { // the frame that closes it was removed with others
			return errClosed
		}
		return ctx.Err()
	})
	switch {
	case err == nil:
		return Segment{}, fmt.Errorf("archive: segment %d of %s is not closed", seg.Number, c.Partition)
	case !errors.Is(err, errClosed):
		return Segment{}, fmt.Errorf("archive: segment %d of %s: %w", seg.Number, c.Partition, err)
	}
	if err := put(); err != nil {
		return Segment{}, err
	}
	row.End, row.ErasedLines, row.RemovedLines = enc.end.String(), enc.erased, max(*removed, enc.gone)
	x.Format = formatOf(row.GetErasedLines(), row.GetRemovedLines())
	of.list(x)
	b, err := pack(enc.zstd, x)
	if err != nil {
		return Segment{}, err
	}
	at, err := d.Add(ctx, b)
	if err != nil {
		return Segment{}, err
	}
	row.Index, row.Stored = object(at, b), stored+int64(len(b))
	if row.Name, err = d.Commit(ctx); err != nil {
		return Segment{}, err
	}
	return Segment{Segment: row, Before: before, End: enc.end}, nil
}

// elsewhere reports whether f, the frame behind end in a log, is in another segment than the one with number, in
// which end is.
func elsewhere(f framelog.Frame, end framelog.End, number uint64) bool {
	if f.Removed.Seq > 0 {
		return f.Removed.Incarnation > end.Incarnation // a new one begins with a segment
	}
	return f.Link.Segment != number
}

// Verify reads a segment and verifies that its frames are those between its ends.
func (s Segment) Verify(ctx context.Context, store Store) error {
	at := s.Before
	var frames, erased int64
	x, err := s.Index(ctx, store)
	if err != nil {
		return err
	}
	err = s.Scan(ctx, store, 0, func(seq uint64, f framelog.Frame) (err error) {
		frames, erased = frames+1, erased+int64(f.Erased())
		at, _, err = at.Next(x.GetPartition(), seq, f)
		return err
	})
	if err == nil && (at != s.End || frames != s.GetFrames() || erased != s.GetErasedLines()) {
		err = fmt.Errorf("archive: segment %d has %d frames up to %s with %d erased lines, not %d up to %s with %d",
			s.GetNumber(), frames, at, erased, s.GetFrames(), s.End, s.GetErasedLines())
	}
	return err
}

// stored returns the segment that is stored under a name.
func stored(ctx context.Context, store Store, partition, name string) (Segment, error) {
	b, at, err := store.Last(ctx, name)
	if err != nil {
		return Segment{}, err
	}
	x, err := readIndex(b)
	if err != nil {
		return Segment{}, err
	}
	if x.GetPartition() != partition {
		return Segment{}, fmt.Errorf("archive: %s is of the partition %s", name, x.GetPartition())
	}
	row := x.GetSegment()
	row.Name, row.Index, row.Stored = name, object(at, b), int64(len(b))
	for _, o := range x.GetObjects() {
		row.Stored += o.GetBytes()
	}
	return parse(row)
}
