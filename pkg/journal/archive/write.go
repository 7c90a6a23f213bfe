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

// errSegmentEnds ends the reading of a segment at its last frame: the one that closes it, or the one behind which the
// log continues in another segment. The latter exists where a repair that accepts a loss cuts a segment and begins a
// new incarnation in another one.
var errSegmentEnds = errors.New("archive: the segment is closed")

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

// write stores a segment that begins behind an end of the log, and returns its row of the catalog, into which it does
// not put the segment. *removed is read after log was scanned; it is how many lines of the segment were removed so far,
// or 0 if the frames alone show that. After an error the store has nothing of the segment, unless only its commit was
// not confirmed.
func (c *Catalog) write(ctx context.Context, store Store, before framelog.End, log framelog.Log, seg framelog.Segment,
	now time.Time, removed *int64,
) (Segment, error) {
	if before.Seq > 0 && before.Segment > seg.Number {
		return Segment{}, fmt.Errorf("archive: segment %d of %s does not follow what is archived, which ends before "+
			"segment %d", seg.Number, c.Partition, before.Segment)
	}
	draft, err := store.Begin(ctx, seg.Number)
	if err != nil {
		return Segment{}, err
	}
	defer draft.Close()
	enc, err := newEncoder(c.Partition, before)
	if err != nil {
		return Segment{}, err
	}
	defer func() { _ = enc.zstd.Close() }()

	// Store the frames as objects.
	row := &archivev1.Segment{
		Number: seg.Number, Shared: seg.Shared, First: seg.First, Before: before.String(),
		ArchivedAt: timestamppb.New(now),
	}
	w := &segmentWriter{
		draft: draft, enc: enc, row: row, index: &archivev1.Index{Partition: c.Partition, Segment: row},
	}
	err = log.Scan(ctx, max(before.Seq+1, seg.First), func(seq uint64, f framelog.Frame) error {
		return w.addFrame(ctx, seq, f)
	})
	switch {
	case err == nil:
		return Segment{}, fmt.Errorf("archive: segment %d of %s is not closed", seg.Number, c.Partition)
	case !errors.Is(err, errSegmentEnds):
		return Segment{}, fmt.Errorf("archive: segment %d of %s: %w", seg.Number, c.Partition, err)
	}
	if err := w.storeObject(ctx); err != nil {
		return Segment{}, err
	}

	// Store the index, which is the last object, and commit.
	row.End, row.ErasedLines, row.RemovedLines = enc.end.String(), enc.erased, max(*removed, enc.gone)
	w.index.Format = formatOf(row.GetErasedLines(), row.GetRemovedLines())
	w.owners.list(w.index)
	b, err := pack(enc.zstd, w.index)
	if err != nil {
		return Segment{}, err
	}
	offset, err := draft.Add(ctx, b)
	if err != nil {
		return Segment{}, err
	}
	row.Index, row.Stored = object(offset, b), w.stored+int64(len(b))
	if row.Name, err = draft.Commit(ctx); err != nil {
		return Segment{}, err
	}
	return Segment{Segment: row, Before: before, End: enc.end}, nil
}

// segmentWriter stores the frames of a segment.
type segmentWriter struct {
	draft  Draft
	enc    *encoder
	row    *archivev1.Segment // counts what was added
	index  *archivev1.Index   // has the objects so far
	stored int64              // bytes of these objects
	owners owners
}

// addFrame adds the frame at seq. It returns errSegmentEnds if that frame is the last one of the segment, or is behind
// it and was therefore not added.
func (w *segmentWriter) addFrame(ctx context.Context, seq uint64, f framelog.Frame) error {
	number := w.row.GetNumber()
	if w.row.GetFrames() > 0 && inOtherSegment(f, w.enc.end, number) {
		if _, _, err := w.enc.end.Next(w.enc.partition, seq, f); err != nil {
			return err
		}
		return errSegmentEnds
	}

	if w.enc.full(len(f.Body)) {
		if err := w.storeObject(ctx); err != nil {
			return err
		}
	}
	if err := w.enc.add(seq, f); err != nil {
		return err
	}
	w.owners.add(f.Body)
	w.row.Frames, w.row.Bytes = w.row.GetFrames()+1, w.row.GetBytes()+int64(len(f.Body))

	if f.Link.Next > 0 || f.Removed.Segment > number { // the frame that closes it was removed with others
		return errSegmentEnds
	}
	return ctx.Err()
}

// storeObject stores the frames that were added since the last call as an object, if there are any.
func (w *segmentWriter) storeObject(ctx context.Context) error {
	last := w.enc.end.Seq
	b, before, err := w.enc.finish()
	if err != nil || b == nil {
		return err
	}
	offset, err := w.draft.Add(ctx, b)
	if err != nil {
		return err
	}
	o := object(offset, b)
	o.Before, o.Last = before.String(), last
	w.index.Objects, w.stored = append(w.index.Objects, o), w.stored+o.GetBytes()
	return nil
}

// inOtherSegment reports whether f, the frame behind end in a log, is in another segment than the one with number, in
// which end is.
func inOtherSegment(f framelog.Frame, end framelog.End, number uint64) bool {
	if f.Removed.Seq > 0 {
		return f.Removed.Incarnation > end.Incarnation // a new incarnation begins with a segment
	}
	return f.Link.Segment != number
}

// Verify reads a segment and verifies that its frames are those between its ends.
func (s Segment) Verify(ctx context.Context, store Store) error {
	end := s.Before
	var frames, erased int64
	x, err := s.Index(ctx, store)
	if err != nil {
		return err
	}
	err = s.Scan(ctx, store, 0, func(seq uint64, f framelog.Frame) (err error) {
		frames, erased = frames+1, erased+int64(f.Erased())
		end, _, err = end.Next(x.GetPartition(), seq, f)
		return err
	})
	if err == nil && (end != s.End || frames != s.GetFrames() || erased != s.GetErasedLines()) {
		err = fmt.Errorf("archive: segment %d has %d frames up to %s with %d erased lines, not %d up to %s with %d",
			s.GetNumber(), frames, end, erased, s.GetFrames(), s.End, s.GetErasedLines())
	}
	return err
}

// storedSegment returns the segment of a partition that is stored under a name, as its index describes it.
func storedSegment(ctx context.Context, store Store, partition, name string) (Segment, error) {
	b, offset, err := store.Last(ctx, name)
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
	row.Name, row.Index, row.Stored = name, object(offset, b), int64(len(b))
	for _, o := range x.GetObjects() {
		row.Stored += o.GetBytes()
	}
	return parse(row)
}
