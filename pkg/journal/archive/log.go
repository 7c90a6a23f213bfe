package archive

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"quartet/pkg/journal/framelog"
	archivev1 "quartet/pkg/pb/quartet/archive/v1"
)

// Live is a log whose closed segments may be dropped.
type Live interface {
	framelog.Log
	framelog.Segmented
}

// Log is a log with its archive. Frames that the log does not have any more are read from the archive, so that
// readers need not know where a frame is. An archive that is damaged gives a *framelog.Broken.
type Log struct {
	Live
	store     Store
	partition string

	mu      sync.Mutex
	catalog *Catalog // as it was read last; nil at first
	cached  cached
}

// cached is the index and object that were read last.
type cached struct {
	name   string
	index  *archivev1.Index
	object int
	frames []Frame
}

var (
	_ framelog.Log       = (*Log)(nil)
	_ framelog.Bounded   = (*Log)(nil)
	_ framelog.Segmented = (*Log)(nil)
)

// NewLog returns the log of a partition with its archive.
func NewLog(live Live, store Store, partition string) *Log {
	return &Log{Live: live, store: store, partition: partition}
}

// MaxBody implements framelog.Bounded.
func (l *Log) MaxBody() int {
	if b, ok := l.Live.(framelog.Bounded); ok {
		return b.MaxBody()
	}
	return math.MaxInt
}

// Catalog reads the catalog.
func (l *Log) Catalog(ctx context.Context) (*Catalog, error) {
	c, err := Read(ctx, l.store, l.partition)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.catalog = c
	return c, nil
}

// known returns the catalog as it was read last, nil if it never was.
func (l *Log) known() *Catalog {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.catalog
}

// Get implements framelog.Log. It reads the frame from the archive or from the live log, whichever has it.
func (l *Log) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	// Ask the live log, unless the frame is known to be archived. If that fails, the frame may have been archived
	// since.
	if c := l.known(); c == nil || seq > c.End().Seq {
		f, err := l.Live.Get(ctx, seq)
		if err == nil || ctx.Err() != nil {
			return f, err
		}
		c, readErr := l.Catalog(ctx)
		switch {
		case readErr != nil:
			return f, l.damaged(seq, readErr)
		case seq > c.End().Seq:
			return f, err
		}
	}

	// Look at the first archived frame from seq on. If that stands for removed frames, seq was among these.
	var found *framelog.Frame
	err := l.scanArchive(ctx, seq, func(foundSeq uint64, f framelog.Frame) error {
		if foundSeq == seq || f.Removed.Seq > 0 {
			found = &f
		}
		return errFound
	})
	switch {
	case err != nil && !errors.Is(err, errFound):
		return framelog.Frame{}, err
	case found == nil:
		return framelog.Frame{}, fmt.Errorf("%w: %d", framelog.ErrGone, seq)
	}
	return *found, nil
}

// errFound ends a reader at the first frame.
var errFound = errors.New("archive: found")

// Scan implements framelog.Log. It reads from the archive what the live log does not have any more.
func (l *Log) Scan(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	return l.read(ctx, from, fn, l.Live.Scan)
}

// Follow implements framelog.Log. It reads from the archive what the live log does not have any more.
func (l *Log) Follow(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	return l.read(ctx, from, fn, l.Live.Follow)
}

// read reads from the live log with live, which is its Scan or Follow, and from the archive what the live log does
// not have any more.
func (l *Log) read(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error,
	live func(context.Context, uint64, func(uint64, framelog.Frame) error) error,
) error {
	var fnErr error
	pass := func(seq uint64, f framelog.Frame) error {
		if fnErr = fn(seq, f); fnErr == nil {
			from = seq + 1
		}
		return fnErr
	}
	for {
		err := live(ctx, from, pass)
		if err == nil || fnErr != nil || ctx.Err() != nil {
			return err
		}

		// The live log failed. If it begins behind from, read what the archive has, and then the live log again.
		c, readErr := l.Catalog(ctx)
		switch {
		case readErr != nil:
			return l.damaged(from, readErr)
		case from <= c.End().Seq:
			if err := l.scanArchive(ctx, from, pass); err != nil {
				return err
			}
		case errors.Is(err, framelog.ErrTrimmed):
			if from, err = l.resumeLive(ctx, c, from); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// resumeLive returns the sequence number from which to continue reading the live log if it was trimmed at from, which
// is behind all that is archived. The error is a *framelog.Broken if segments between the archive and the live log are
// missing.
func (l *Log) resumeLive(ctx context.Context, c *Catalog, from uint64) (uint64, error) {
	segments, err := l.Segments(ctx) // of the live log
	if err != nil {
		return from, err
	}
	// If the last archived segment was closed, c.End().Segment is the one behind it, the first that is not archived.
	follows := len(segments) > 0
	if follows && segments[0].Number > c.End().Segment {
		// Segments are missing, unless a repair gave them up: then the first live frame continues the archive.
		follows = false
		err := l.Live.Scan(ctx, segments[0].First, func(seq uint64, f framelog.Frame) error {
			_, _, err := c.End().Next(l.partition, seq, f)
			follows = err == nil
			return errFound
		})
		if err != nil && !errors.Is(err, errFound) {
			return from, err
		}
	}
	if !follows {
		return from, &framelog.Broken{
			Partition: l.partition, After: c.End(), Seq: from,
			Cause: fmt.Sprintf("segments from %d on are neither in the log nor in its archive", c.End().Segment),
		}
	}
	return max(from, segments[0].First), nil
}

// scanArchive calls fn with the archived frames from a sequence number on, in order, until fn returns an error. If a
// segment was rewritten meanwhile, because lines of it were erased, it continues with the segment as it is now.
func (l *Log) scanArchive(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	var fnErr error // of fn, or of ctx
	pass := func(seq uint64, f framelog.Frame) error {
		if fnErr = ctx.Err(); fnErr == nil {
			fnErr = fn(seq, f)
		}
		if fnErr == nil {
			from = seq + 1
		}
		return fnErr
	}
	c := l.known()
	for i := c.find(from); i < len(c.Segments); i++ {
		s := c.Segments[i]
		x, err := l.index(ctx, s)
		if err == nil {
			err = scan(x, from, func(i int) ([]Frame, error) { return l.object(ctx, s, x, i) }, pass)
		}
		switch {
		case fnErr != nil:
			return fnErr
		case err == nil:
		case c.Rewritten(ctx, l.store, s, err):
			if c, err = l.Catalog(ctx); err != nil {
				return l.damaged(from, err)
			}
			i-- // read it again
		default:
			return l.damaged(from, err)
		}
	}
	return nil
}

// index returns the index of a segment. It keeps it until another one is asked for.
func (l *Log) index(ctx context.Context, s Segment) (*archivev1.Index, error) {
	l.mu.Lock()
	last := l.cached
	l.mu.Unlock()
	if last.name == s.GetName() {
		return last.index, nil
	}
	x, err := s.Index(ctx, l.store)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cached = cached{name: s.GetName(), index: x}
	return x, nil
}

// object returns the frames of the i-th object of a segment with the index x. It keeps them until others are asked for;
// they are shared and must not be changed.
func (l *Log) object(ctx context.Context, s Segment, x *archivev1.Index, i int) ([]Frame, error) {
	l.mu.Lock()
	last := l.cached
	l.mu.Unlock()
	if last.name == s.GetName() && last.object == i && last.frames != nil {
		return last.frames, nil
	}
	frames, err := s.Frames(ctx, l.store, x, i)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cached = cached{name: s.GetName(), index: x, object: i, frames: frames}
	return frames, nil
}

// damaged returns a *framelog.Broken at seq if err says that something of the archive is missing or damaged. It
// returns any other error as it is.
func (l *Log) damaged(seq uint64, err error) error {
	var broken *framelog.Broken
	if errors.As(err, &broken) || !errors.Is(err, ErrNoObject) && !errors.Is(err, ErrDamaged) {
		return err
	}
	return &framelog.Broken{Partition: l.partition, Seq: seq, Cause: err.Error()}
}
