package jetlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/framelog"
)

// Log is one partition's log.
type Log struct {
	nc        *nats.Conn
	js        jetstream.JetStream
	plane     string
	partition int

	// OnDamage, if set, is called with the server of a replica that lacks frames which others have, and with
	// the damage. The reader continues at another one.
	OnDamage func(server string, damage error)

	mu       sync.Mutex
	segments []*segment // that are known, by number
}

var (
	_ framelog.Log       = (*Log)(nil)
	_ framelog.Bounded   = (*Log)(nil)
	_ framelog.Segmented = (*Log)(nil)
)

// New returns the log of a partition. Its first segment must exist; Ensure creates it.
func New(nc *nats.Conn, plane string, partition int) (*Log, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("jetlog: %w", err)
	}
	return &Log{nc: nc, js: js, plane: plane, partition: partition}, nil
}

// MaxBody implements framelog.Bounded. It returns max_payload of the connected server less HeaderRoom, at least 0.
func (l *Log) MaxBody() int { return int(max(l.nc.MaxPayload()-HeaderRoom, 0)) }

// known returns the segments that are known, and looks them up if there are none.
func (l *Log) known(ctx context.Context) ([]*segment, error) {
	l.mu.Lock()
	segments := l.segments
	l.mu.Unlock()
	if len(segments) > 0 {
		return segments, nil
	}
	return l.refresh(ctx)
}

// refresh looks up which segments there are.
func (l *Log) refresh(ctx context.Context) ([]*segment, error) {
	places, err := Places(ctx, l.js, l.plane)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	known := l.segments
	l.mu.Unlock()
	var segments []*segment
	for _, p := range places {
		switch {
		case p.Shared: // it is that of every partition
			p.Partition = l.partition
		case p.Partition != l.partition:
			continue
		}
		// Keep a segment that is known, since it knows which of its replicas are damaged.
		i := slices.IndexFunc(known, func(s *segment) bool { return *s.Place == p })
		if i >= 0 {
			segments = append(segments, known[i])
			continue
		}
		s, err := l.open(ctx, p)
		if errors.Is(err, jetstream.ErrStreamNotFound) { // removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		segments = append(segments, s)
	}
	segments = withoutDropped(segments)
	l.mu.Lock()
	l.segments = segments
	l.mu.Unlock()
	return segments, nil
}

// withoutDropped returns the segments without a Shared segment that the log does not have any more: it is followed by a
// gap, since the segment behind it was dropped. Between other segments, which are dropped in order, a missing number is
// that of a segment that a repair gave up.
func withoutDropped(segments []*segment) []*segment {
	if len(segments) > 1 && segments[0].Shared && segments[1].Segment != segments[0].Segment+1 {
		return segments[1:]
	}
	return segments
}

// findSegment returns the segment with a number, or nil.
func findSegment(segments []*segment, number uint64) *segment {
	for _, s := range segments {
		if s.Segment == number {
			return s
		}
	}
	return nil
}

// Append implements framelog.Log. It sends at most one request to store f, and never repeats it. ErrWrongSequence,
// ErrBusy and ErrRefused, such as ErrSegmentGone, say that f was not stored; after any other error that is unknown.
func (l *Log) Append(ctx context.Context, expect uint64, f framelog.Frame) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("%w: %w", framelog.ErrRefused, err)
	}
	segments, err := l.known(ctx)
	if err != nil {
		return 0, fmt.Errorf("jetlog: append: %w", err)
	}
	s := findSegment(segments, f.Link.Segment)
	if s == nil {
		if segments, err = l.refresh(ctx); err != nil {
			return 0, fmt.Errorf("jetlog: append: %w", err)
		}
		if s = findSegment(segments, f.Link.Segment); s == nil {
			return 0, fmt.Errorf("%w: %s", framelog.ErrSegmentGone, Place{
				Plane: l.plane, Partition: l.partition,
				Segment: f.Link.Segment,
			}.Stream())
		}
	}
	return s.append(ctx, expect, f)
}

// Tail implements framelog.Log. It returns an error if the partition has no stream.
func (l *Log) Tail(ctx context.Context) (framelog.Frame, uint64, error) {
	f, seq, _, err := l.tail(ctx)
	return f, seq, err
}

// tail is Tail, which also returns the segments. Those that are known are all there are, unless the last frame in them
// closes its segment, they have no frame, or one of them was removed; then it looks again which segments there are.
func (l *Log) tail(ctx context.Context) (framelog.Frame, uint64, []*segment, error) {
	segments, err := l.known(ctx)
	if err != nil {
		return framelog.Frame{}, 0, nil, fmt.Errorf("jetlog: tail: %w", err)
	}
	f, seq, err := tailOf(ctx, segments)
	if err == nil && seq == 0 || f.Link.Next > 0 || errors.Is(err, jetstream.ErrStreamNotFound) {
		if segments, err = l.refresh(ctx); err != nil {
			return framelog.Frame{}, 0, nil, fmt.Errorf("jetlog: tail: %w", err)
		}
		f, seq, err = tailOf(ctx, segments)
	}
	if err == nil && len(segments) == 0 {
		err = fmt.Errorf("jetlog: tail: %s/%d has no stream", l.plane, l.partition)
	}
	return f, seq, segments, err
}

// tailOf returns the last frame of some segments and its sequence number, or a zero Frame and 0 if they have none.
func tailOf(ctx context.Context, segments []*segment) (f framelog.Frame, seq uint64, err error) {
	for i := len(segments) - 1; i >= 0 && seq == 0 && err == nil; i-- {
		f, seq, err = segments[i].tail(ctx)
	}
	return f, seq, err
}

// Get implements framelog.Log. If no known segment has the frame, it looks again which segments there are. It returns
// ErrTrimmed for a frame before the first segment that the log still has.
func (l *Log) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	segments, err := l.known(ctx)
	if err != nil {
		return framelog.Frame{}, fmt.Errorf("jetlog: get %d: %w", seq, err)
	}
	f, err := get(ctx, segments, seq)
	if !errors.Is(err, framelog.ErrNoFrame) && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return f, err
	}
	current, refreshErr := l.refresh(ctx)
	switch {
	case refreshErr != nil:
		return framelog.Frame{}, fmt.Errorf("jetlog: get %d: %w", seq, refreshErr)
	case slices.Equal(current, segments):
		return f, err
	}
	return get(ctx, current, seq)
}

// get returns the frame at seq in one of the segments.
func get(ctx context.Context, segments []*segment, seq uint64) (framelog.Frame, error) {
	if err := checkTrimmed(segments, seq); err != nil {
		return framelog.Frame{}, err
	}
	i := segmentOf(segments, seq)
	if i < 0 {
		return framelog.Frame{}, fmt.Errorf("%w: %d", framelog.ErrGone, seq)
	}
	return segments[i].get(ctx, seq)
}

// segmentOf returns the index of the segment to which seq belongs, whether or not it has a frame there; -1 if seq is
// before the first one.
func segmentOf(segments []*segment, seq uint64) int {
	i := len(segments) - 1
	for i >= 0 && segments[i].first > seq {
		i--
	}
	return i
}

// checkTrimmed returns ErrTrimmed if the log had frames from seq on that it does not have any more.
func checkTrimmed(segments []*segment, seq uint64) error {
	if len(segments) > 0 && segments[0].Segment > 0 && seq < segments[0].first { // nothing is before segment 0
		return fmt.Errorf("%w: at %d, not at %d", framelog.ErrTrimmed, segments[0].first, seq)
	}
	return nil
}

// Scan implements framelog.Log with a reader that stops at the tail. It returns ErrTrimmed if frames from from on
// were dropped.
func (l *Log) Scan(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	_, last, segments, err := l.tail(ctx)
	if err != nil || last == 0 || last < from {
		return err
	}
	for {
		if err := checkTrimmed(segments, from); err != nil {
			return err
		}
		next, err := l.scan(ctx, segments, from, last, fn)
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		previous := segments // a segment was dropped
		if segments, err = l.refresh(ctx); err != nil || slices.Equal(segments, previous) {
			return errors.Join(fmt.Errorf("jetlog: scan: %w", jetstream.ErrStreamNotFound), err)
		}
		from = next
	}
}

// scan calls fn, in order, with the frames in the segments whose sequence numbers are at least from and at most last.
// It returns the sequence number from which to continue, also with an error. Numbers without a frame are skipped, but
// if the last frame of a segment in that range is not delivered, the error is ErrIncomplete.
func (l *Log) scan(ctx context.Context, segments []*segment, from, last uint64,
	fn func(uint64, framelog.Frame) error,
) (next uint64, err error) {
	for i := max(segmentOf(segments, from), 0); i < len(segments) && from <= last; i++ {
		end := last
		if segmentOf(segments, last) != i {
			if end, err = segments[i].last(ctx); err != nil {
				return from, fmt.Errorf("jetlog: scan: %w", err)
			}
		}
		if end < from {
			continue
		}
		if from, err = segments[i].read(ctx, from, end, fn); err != nil {
			return from, err
		}
	}
	return from, nil
}

// Follow implements framelog.Log. It continues after errors of the server until ctx ends, and returns ErrTrimmed if
// frames from from on were dropped.
func (l *Log) Follow(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		next, closed, err := l.followSegment(ctx, from, fn)
		var fnErr *callbackError
		switch {
		case errors.As(err, &fnErr):
			return fnErr.error
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, framelog.ErrTrimmed):
			return err
		}
		from = next
		if closed {
			wait.Reset(0)
		} else {
			wait.Reset(200 * time.Millisecond)
		}
	}
}

// followSegment reads from the sequence number from on, and waits for future frames. It returns after the closing
// frame of the last segment that has frames (closed is true), or with an error. next is the sequence number at which
// to continue. If a later segment has frames, followSegment does not wait for more frames of a segment, whose closing
// frame may be lost, but continues with the next one. It skips a segment whose closing frame is before from.
func (l *Log) followSegment(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) (next uint64,
	closed bool, err error,
) {
	segments, err := l.refresh(ctx)
	if err == nil {
		err = checkTrimmed(segments, from)
	}
	if err != nil {
		return from, false, err
	}

	// The closing frame says where the next segment begins.
	pass := func(seq uint64, f framelog.Frame) error {
		if err := fn(seq, f); err != nil {
			return &callbackError{err}
		}
		if f.Link.Next > 0 {
			from, closed = f.Link.Next, true
			return errClosed // it ends the reading of this segment
		}
		return nil
	}
	for i := max(segmentOf(segments, from), 0); i < len(segments); i++ {
		continued := false
		if i < len(segments)-1 {
			later, err := segments[i+1].last(ctx)
			if err != nil {
				return from, false, err
			}
			continued = later > 0
		}
		// If a later segment has frames, this one had stopped growing before its tail is read here, so the tail is
		// final.
		f, end, err := segments[i].tail(ctx)
		switch {
		case err != nil:
			return from, false, err
		case f.Link.Next > 0 && from > end: // everything in it was read
			continue
		case !continued: // read it, and wait for its future frames
			next, err = segments[i].read(ctx, from, 0, pass)
			if closed {
				return from, true, nil
			}
			return next, false, err
		case end >= from: // read what is left of it
			if next, err = segments[i].read(ctx, from, end, pass); err != nil && !closed {
				return next, false, err
			}
			from, closed = max(from, next), false // pass has set from if the frame at end closes the segment
		}
	}
	return from, false, fmt.Errorf("%w: the segment of %s/%d that follows is not there yet", framelog.ErrNoFrame,
		l.plane, l.partition)
}

// errClosed ends a reader at the frame that closes a segment.
var errClosed = errors.New("jetlog: the segment is closed")

// callbackError is an error of the function that a follower calls.
type callbackError struct{ error }

func (e *callbackError) Unwrap() error { return e.error }

// Prepare implements framelog.Segmented: it creates the stream of the segment number+1 unless it exists. It returns
// ErrSegmentGone if the log does not have the segment number.
func (l *Log) Prepare(ctx context.Context, number uint64) (uint64, error) {
	segments, err := l.refresh(ctx)
	if err != nil {
		return 0, fmt.Errorf("jetlog: prepare: %w", err)
	}
	if s := findSegment(segments, number+1); s != nil {
		return s.first, nil
	}
	present := findSegment(segments, number)
	if present == nil {
		return 0, fmt.Errorf("%w: segment %d of %s/%d", framelog.ErrSegmentGone, number, l.plane, l.partition)
	}
	info, err := present.info(ctx)
	if err != nil {
		return 0, fmt.Errorf("jetlog: prepare: %w", err)
	}
	partitions, err := Partitions(info.Config)
	if err != nil {
		return 0, fmt.Errorf("jetlog: prepare: %w", err)
	}
	if present.Shared {
		if err := narrow(ctx, l.js, info.Config, partitions); err != nil {
			return 0, fmt.Errorf("jetlog: prepare: %w", err)
		}
	}
	p := Place{Plane: l.plane, Partition: l.partition, Segment: number + 1}
	want := p.Config(info.Config.Replicas, partitions)
	want.FirstSeq = info.State.LastSeq + framelog.SegmentGap
	s, err := create(ctx, l.js, want)
	if err != nil {
		return 0, err
	}
	if err := verify(want, s.CachedInfo().Config); err != nil {
		return 0, err
	}
	if _, err := l.refresh(ctx); err != nil {
		return 0, fmt.Errorf("jetlog: prepare: %w", err)
	}
	return s.CachedInfo().Config.FirstSeq, nil
}

// Size implements framelog.Segmented. The segment in the stream of all partitions of a plane, as earlier versions wrote
// it, is larger than any other.
func (l *Log) Size(ctx context.Context, number uint64) (int64, error) {
	segments, err := l.known(ctx)
	if err != nil {
		return 0, err
	}
	s := findSegment(segments, number)
	switch {
	case s == nil:
		return 0, fmt.Errorf("%w: segment %d of %s/%d", framelog.ErrSegmentGone, number, l.plane, l.partition)
	case s.Shared:
		return math.MaxInt64, nil
	}
	info, err := s.info(ctx)
	if err != nil {
		return 0, err
	}
	return int64(min(info.State.Bytes, math.MaxInt64)), nil
}

// Segments implements framelog.Segmented.
func (l *Log) Segments(ctx context.Context) ([]framelog.Segment, error) {
	segments, err := l.refresh(ctx)
	if err != nil {
		return nil, fmt.Errorf("jetlog: segments: %w", err)
	}
	out := make([]framelog.Segment, len(segments))
	for i, s := range segments {
		out[i] = framelog.Segment{Number: s.Segment, First: s.first, Shared: s.Shared}
	}
	return out, nil
}

// Drop implements framelog.Segmented. It returns nil if the segment does not exist, or if its stream is Shared, which
// it leaves as it is. It returns an error if the segment is the only one, if it is not the first one that is not
// Shared, or if no frame is behind it.
func (l *Log) Drop(ctx context.Context, number uint64) error {
	segments, err := l.refresh(ctx)
	if err != nil {
		return fmt.Errorf("jetlog: drop: %w", err)
	}
	s := findSegment(segments, number)
	switch {
	case s == nil || s.Shared:
		return nil
	case len(segments) == 1 || s != segments[0] && (s != segments[1] || !segments[0].Shared):
		return fmt.Errorf("jetlog: segment %d of %s/%d is not to be dropped: it is not the first of several", number,
			l.plane, l.partition)
	}
	_, laterFrames, err := tailOf(ctx, segments[slices.Index(segments, s)+1:])
	if err == nil && laterFrames == 0 {
		err = fmt.Errorf("no frame is behind segment %d of %s/%d", number, l.plane, l.partition)
	}
	if err == nil {
		_, err = Patiently(ctx, func(ctx context.Context) (struct{}, error) {
			err := l.js.DeleteStream(ctx, s.Stream())
			if errors.Is(err, jetstream.ErrStreamNotFound) {
				err = nil
			}
			return struct{}{}, err
		})
	}
	if err == nil {
		_, err = l.refresh(ctx)
	}
	if err != nil {
		return fmt.Errorf("jetlog: drop: %w", err)
	}
	return nil
}
