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

	// OnDamage, if set, is called with the server of a replica that does not have what others have, and what is wrong
	// with it. The reader goes on at another one.
	OnDamage func(server string, damage error)

	mu       sync.Mutex
	segments []*segment // that are known, by number
}

var (
	_ framelog.Log       = (*Log)(nil)
	_ framelog.Bounded   = (*Log)(nil)
	_ framelog.Segmented = (*Log)(nil)
)

// New returns the log of a partition. Its first segment must exist; see Ensure.
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
	all := l.segments
	l.mu.Unlock()
	if len(all) > 0 {
		return all, nil
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
	had := l.segments
	l.mu.Unlock()
	var all []*segment
	for _, p := range places {
		switch {
		case p.Shared:
			p.Partition = l.partition
		case p.Partition != l.partition:
			continue
		}
		i := slices.IndexFunc(had, func(s *segment) bool { return *s.Place == p })
		if i >= 0 {
			all = append(all, had[i])
			continue
		}
		s, err := l.open(ctx, p)
		if errors.Is(err, jetstream.ErrStreamNotFound) { // removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	all = behindGap(all)
	l.mu.Lock()
	l.segments = all
	l.mu.Unlock()
	return all, nil
}

// behindGap returns all without a Shared segment that the log does not have any more: it is followed by a gap, since
// the segment behind it was dropped. Between other segments, which are dropped in order, a missing number is that of
// a segment that a repair gave up.
func behindGap(all []*segment) []*segment {
	if len(all) > 1 && all[0].Shared && all[1].Segment != all[0].Segment+1 {
		return all[1:]
	}
	return all
}

// at returns the segment with a number, or nil.
func at(all []*segment, number uint64) *segment {
	for _, s := range all {
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
	all, err := l.known(ctx)
	if err != nil {
		return 0, fmt.Errorf("jetlog: append: %w", err)
	}
	s := at(all, f.Link.Segment)
	if s == nil {
		if all, err = l.refresh(ctx); err != nil {
			return 0, fmt.Errorf("jetlog: append: %w", err)
		}
		if s = at(all, f.Link.Segment); s == nil {
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
// closes its segment.
func (l *Log) tail(ctx context.Context) (framelog.Frame, uint64, []*segment, error) {
	all, err := l.known(ctx)
	if err != nil {
		return framelog.Frame{}, 0, nil, fmt.Errorf("jetlog: tail: %w", err)
	}
	f, seq, err := tailOf(ctx, all)
	if err == nil && seq == 0 || f.Link.Next > 0 || errors.Is(err, jetstream.ErrStreamNotFound) {
		if all, err = l.refresh(ctx); err != nil {
			return framelog.Frame{}, 0, nil, fmt.Errorf("jetlog: tail: %w", err)
		}
		f, seq, err = tailOf(ctx, all)
	}
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("jetlog: tail: %s/%d has no stream", l.plane, l.partition)
	}
	return f, seq, all, err
}

// tailOf returns the last frame of some segments and its sequence number, or a zero Frame and 0 if they have none.
func tailOf(ctx context.Context, all []*segment) (f framelog.Frame, seq uint64, err error) {
	for i := len(all) - 1; i >= 0 && seq == 0 && err == nil; i-- {
		f, seq, err = all[i].tail(ctx)
	}
	return f, seq, err
}

// Get implements framelog.Log. If no known segment has the frame, it looks again which segments there are. It returns
// ErrTrimmed for a frame before the first segment that the log still has.
func (l *Log) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	all, err := l.known(ctx)
	if err != nil {
		return framelog.Frame{}, fmt.Errorf("jetlog: get %d: %w", seq, err)
	}
	f, err := get(ctx, all, seq)
	if !errors.Is(err, framelog.ErrNoFrame) && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return f, err
	}
	now, refreshErr := l.refresh(ctx)
	switch {
	case refreshErr != nil:
		return framelog.Frame{}, fmt.Errorf("jetlog: get %d: %w", seq, refreshErr)
	case slices.Equal(now, all):
		return f, err
	}
	return get(ctx, now, seq)
}

// get returns the frame at seq in one of the segments.
func get(ctx context.Context, all []*segment, seq uint64) (framelog.Frame, error) {
	if err := begins(all, seq); err != nil {
		return framelog.Frame{}, err
	}
	i := holds(all, seq)
	if i < 0 {
		return framelog.Frame{}, fmt.Errorf("%w: %d", framelog.ErrGone, seq)
	}
	return all[i].get(ctx, seq)
}

// holds returns the index of the segment to which seq belongs, whether or not it has a frame there; -1 if seq is
// before the first one.
func holds(all []*segment, seq uint64) int {
	i := len(all) - 1
	for i >= 0 && all[i].first > seq {
		i--
	}
	return i
}

// begins returns ErrTrimmed if the log had frames from seq on that it does not have any more.
func begins(all []*segment, seq uint64) error {
	if len(all) > 0 && all[0].Segment > 0 && seq < all[0].first {
		return fmt.Errorf("%w: at %d, not at %d", framelog.ErrTrimmed, all[0].first, seq)
	}
	return nil
}

// Scan implements framelog.Log with a reader that stops at the tail. It returns ErrTrimmed if frames from from on
// were dropped.
func (l *Log) Scan(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	_, last, all, err := l.tail(ctx)
	if err != nil || last == 0 || last < from {
		return err
	}
	for {
		if err := begins(all, from); err != nil {
			return err
		}
		next, err := l.scan(ctx, all, from, last, fn)
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		was := all // a segment was dropped
		if all, err = l.refresh(ctx); err != nil || slices.Equal(all, was) {
			return errors.Join(fmt.Errorf("jetlog: scan: %w", jetstream.ErrStreamNotFound), err)
		}
		from = next
	}
}

// scan calls fn, in order, with the frames in the segments whose sequence numbers are at least from and at most last.
// It returns the sequence number from which to continue, also with an error. Numbers without a frame are skipped, but
// if the last frame of a segment in that range is not delivered, the error is ErrIncomplete.
func (l *Log) scan(ctx context.Context, all []*segment, from, last uint64, fn func(uint64, framelog.Frame) error) (
	next uint64, err error,
) {
	for i := max(holds(all, from), 0); i < len(all) && from <= last; i++ {
		end := last
		if holds(all, last) != i {
			if end, err = all[i].last(ctx); err != nil {
				return from, fmt.Errorf("jetlog: scan: %w", err)
			}
		}
		if end < from {
			continue
		}
		if from, err = all[i].read(ctx, from, end, fn); err != nil {
			return from, err
		}
	}
	return from, nil
}

// Follow implements framelog.Log. It goes on after errors of the server until ctx ends, and returns ErrTrimmed if
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
		var own *callbackError
		switch {
		case errors.As(err, &own):
			return own.error
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
// frame may be lost, but goes on to the next one. It skips a segment whose closing frame is before from.
func (l *Log) followSegment(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) (next uint64,
	closed bool, err error,
) {
	all, err := l.refresh(ctx)
	if err == nil {
		err = begins(all, from)
	}
	if err != nil {
		return from, false, err
	}
	pass := func(seq uint64, f framelog.Frame) error {
		if err := fn(seq, f); err != nil {
			return &callbackError{err}
		}
		if f.Link.Next > 0 {
			from, closed = f.Link.Next, true
			return errClosed
		}
		return nil
	}
	for i := max(holds(all, from), 0); i < len(all); i++ {
		continued := false
		if i < len(all)-1 {
			later, err := all[i+1].last(ctx)
			if err != nil {
				return from, false, err
			}
			continued = later > 0
		}
		// If a later segment has frames, this one had stopped growing before its tail is read here, so the tail is
		// final.
		f, end, err := all[i].tail(ctx)
		switch {
		case err != nil:
			return from, false, err
		case f.Link.Next > 0 && from > end:
			continue
		case !continued:
			next, err = all[i].read(ctx, from, 0, pass)
			if closed {
				return from, true, nil
			}
			return next, false, err
		case end >= from:
			if next, err = all[i].read(ctx, from, end, pass); err != nil && !closed {
				return next, false, err
			}
			from, closed = max(from, next), false
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
	all, err := l.refresh(ctx)
	if err != nil {
		return 0, fmt.Errorf("jetlog: prepare: %w", err)
	}
	if s := at(all, number+1); s != nil {
		return s.first, nil
	}
	was := at(all, number)
	if was == nil {
		return 0, fmt.Errorf("%w: segment %d of %s/%d", framelog.ErrSegmentGone, number, l.plane, l.partition)
	}
	info, err := was.info(ctx)
	if err != nil {
		return 0, fmt.Errorf("jetlog: prepare: %w", err)
	}
	partitions, err := Partitions(info.Config)
	if err != nil {
		return 0, fmt.Errorf("jetlog: prepare: %w", err)
	}
	if was.Shared {
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
	all, err := l.known(ctx)
	if err != nil {
		return 0, err
	}
	s := at(all, number)
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
	all, err := l.refresh(ctx)
	if err != nil {
		return nil, fmt.Errorf("jetlog: segments: %w", err)
	}
	out := make([]framelog.Segment, len(all))
	for i, s := range all {
		out[i] = framelog.Segment{Number: s.Segment, First: s.first, Shared: s.Shared}
	}
	return out, nil
}

// Drop implements framelog.Segmented. It returns nil if the segment does not exist, or if its stream is Shared, which
// it leaves as it is. It returns an error if the segment is the only one, if it is not the first one that is not
// Shared, or if no frame is behind it.
func (l *Log) Drop(ctx context.Context, number uint64) error {
	all, err := l.refresh(ctx)
	if err != nil {
		return fmt.Errorf("jetlog: drop: %w", err)
	}
	s := at(all, number)
	switch {
	case s == nil || s.Shared:
		return nil
	case len(all) == 1 || s != all[0] && (s != all[1] || !all[0].Shared):
		return fmt.Errorf("jetlog: segment %d of %s/%d is not to be dropped: it is not the first of several", number,
			l.plane, l.partition)
	}
	_, behind, err := tailOf(ctx, all[slices.Index(all, s)+1:])
	if err == nil && behind == 0 {
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
