package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sort"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/framelog"
	archivev1 "quartet/pkg/pb/quartet/archive/v1"
)

// Segment is a segment in the catalog. It must not be changed.
type Segment struct {
	*archivev1.Segment
	Before framelog.End // the end of the log before its first frame
	End    framelog.End // behind its last frame
}

// Catalog is the catalog of a partition's archive as it was read. It must not be changed.
type Catalog struct {
	Partition string
	Segments  []Segment // in order; each continues the one before it
	version   uint64
}

// ErrDamaged means that the catalog of an archive is not what was written.
var ErrDamaged = errors.New("archive: the catalog is damaged")

// Read returns the catalog of a partition; an empty one if nothing is archived. Its error is ErrDamaged, that of the
// store, or says that the catalog is of a later version.
func Read(ctx context.Context, store Store, partition string) (*Catalog, error) {
	b, version, err := store.Catalog(ctx)
	if err != nil {
		return nil, fmt.Errorf("archive: catalog of %s: %w", partition, err)
	}
	c := &Catalog{Partition: partition, version: version}
	if version == 0 {
		return c, nil
	}

	// It begins with the hash of the rest.
	var in archivev1.Catalog
	sum := sha256.Size
	switch {
	case len(b) < sum:
		return nil, fmt.Errorf("%w: %s: it has %d bytes", ErrDamaged, partition, len(b))
	case sha256.Sum256(b[sum:]) != [sha256.Size]byte(b[:sum]):
		return nil, fmt.Errorf("%w: %s: its hash is another one", ErrDamaged, partition)
	}
	if err := proto.Unmarshal(b[sum:], &in); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, partition, err)
	}
	switch {
	case !knownFormat(in.GetFormat()):
		return nil, fmt.Errorf("archive: the catalog of %s has format %d, this version reads up to %d", partition,
			in.GetFormat(), Format)
	case in.GetPartition() != partition:
		return nil, fmt.Errorf("%w: %s: it is that of %s", ErrDamaged, partition, in.GetPartition())
	}

	for _, row := range in.GetSegments() {
		s, err := parse(row)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, partition, err)
		}
		c.Segments = append(c.Segments, s)
	}
	return c, nil
}

// parse returns a segment of a catalog or index.
func parse(row *archivev1.Segment) (s Segment, err error) {
	s.Segment = row
	if s.Before, err = framelog.ParseEnd(row.GetBefore()); err != nil {
		return s, err
	}
	s.End, err = framelog.ParseEnd(row.GetEnd())
	return s, err
}

// replace stores a catalog with segments in place of c, or returns ErrReplaced if c is not the stored one any more.
func (c *Catalog) replace(ctx context.Context, store Store, segments []Segment) error {
	out := &archivev1.Catalog{Partition: c.Partition}
	var erased, removed int64
	for _, s := range segments {
		out.Segments, erased, removed = append(out.Segments, s.Segment), erased+s.GetErasedLines(),
			removed+s.GetRemovedLines()
	}
	out.Format = formatOf(erased, removed)
	plain, err := proto.MarshalOptions{Deterministic: true}.Marshal(out)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	sum := sha256.Sum256(plain)
	if err := store.ReplaceCatalog(ctx, c.version, append(sum[:], plain...)); err != nil {
		return fmt.Errorf("archive: catalog of %s: %w", c.Partition, err)
	}
	return nil
}

// End returns the end of the log behind the last segment; the zero End if there is none.
func (c *Catalog) End() framelog.End {
	if n := len(c.Segments); n > 0 {
		return c.Segments[n-1].End
	}
	return framelog.End{}
}

// find returns the index of the first segment that ends at seq or behind it; len(Segments) if there is none.
func (c *Catalog) find(seq uint64) int {
	return sort.Search(len(c.Segments), func(i int) bool { return c.Segments[i].End.Seq >= seq })
}

// indexOf returns the index of the first segment whose number is at least number; len(Segments) if there is none.
func (c *Catalog) indexOf(number uint64) int {
	return sort.Search(len(c.Segments), func(i int) bool { return c.Segments[i].GetNumber() >= number })
}

// Has reports whether the segment with a number is archived.
func (c *Catalog) Has(number uint64) bool {
	i := c.indexOf(number)
	return i < len(c.Segments) && c.Segments[i].GetNumber() == number
}

// Index reads the index of a segment.
func (s Segment) Index(ctx context.Context, store Store) (*archivev1.Index, error) {
	b, err := get(ctx, store, s.GetName(), s.GetIndex())
	if err != nil {
		return nil, fmt.Errorf("archive: index of segment %d: %w", s.GetNumber(), err)
	}
	return readIndex(b)
}

func readIndex(b []byte) (*archivev1.Index, error) {
	x := &archivev1.Index{}
	if err := unpack(b, x); err != nil {
		return nil, err
	}
	if !knownFormat(x.GetFormat()) {
		return nil, fmt.Errorf("archive: an index has format %d, this version reads up to %d", x.GetFormat(), Format)
	}
	return x, nil
}

// Frames reads the object x.Objects[i] of a segment, whose index is x. It verifies that its frames continue each other
// and the log before them, and end where the next object, or what is behind the segment, begins.
func (s Segment) Frames(ctx context.Context, store Store, x *archivev1.Index, i int) ([]Frame, error) {
	o := x.GetObjects()[i]
	b, err := get(ctx, store, s.GetName(), o)
	if err != nil {
		return nil, err
	}
	before, err := framelog.ParseEnd(o.GetBefore())
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	frames, end, err := decode(x.GetPartition(), before, b)
	if err != nil {
		return nil, err
	}
	want := s.End
	if i+1 < len(x.GetObjects()) {
		if want, err = framelog.ParseEnd(x.GetObjects()[i+1].GetBefore()); err != nil {
			return nil, fmt.Errorf("archive: %w", err)
		}
	}
	if end != want {
		return nil, fmt.Errorf("archive: object %d of segment %d ends at %s, not at %s", i, s.GetNumber(), end, want)
	}
	return frames, nil
}

// Scan calls fn with the frames of a segment from a sequence number on, in order. It verifies that they continue each
// other.
func (s Segment) Scan(ctx context.Context, store Store, from uint64, fn func(uint64, framelog.Frame) error) error {
	x, err := s.Index(ctx, store)
	if err != nil {
		return err
	}
	return scan(x, from, func(i int) ([]Frame, error) { return s.Frames(ctx, store, x, i) }, fn)
}

// scan calls fn with the frames of objects from a sequence number on, in order, until fn returns an error. read returns
// those of an object. Errors of both are returned as they are.
func scan(x *archivev1.Index, from uint64, read func(i int) ([]Frame, error),
	fn func(uint64, framelog.Frame) error,
) error {
	objects := x.GetObjects()
	first := sort.Search(len(objects), func(i int) bool { return objects[i].GetLast() >= from })
	for i := first; i < len(objects); i++ {
		frames, err := read(i)
		if err != nil {
			return err
		}
		for _, f := range frames {
			if f.Seq < from {
				continue
			}
			if err := fn(f.Seq, f.Frame); err != nil {
				return err
			}
		}
	}
	return nil
}
