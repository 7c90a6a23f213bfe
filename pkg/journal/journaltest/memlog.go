package journaltest

import (
	"bytes"
	"context"
	"fmt"
	"sort"
	"sync"

	"quartet/pkg/journal/framelog"
)

// MemLog is one partition's log. The zero value is not ready; use NewMemLog.
type MemLog struct {
	mu     sync.Mutex
	seqs   []uint64
	frames []framelog.Frame
	grown  chan struct{} // closed and replaced when a frame arrives
	gap    uint64        // up to gap-1 sequence numbers are skipped before a frame

	segment uint64            // of the next frame
	first   map[uint64]uint64 // where segments that were prepared begin, by number
	sizes   map[uint64]int64
	dropped uint64 // segments below it are dropped
}

var (
	_ framelog.Log       = (*MemLog)(nil)
	_ framelog.Segmented = (*MemLog)(nil)
)

// NewMemLog returns an empty log. Sequences have gaps on purpose, as they have in a
// stream that holds many partitions: a caller that adds one to a sequence and
// expects a frame there is wrong.
func NewMemLog() *MemLog {
	return &MemLog{grown: make(chan struct{}), gap: 3, first: map[uint64]uint64{}, sizes: map[uint64]int64{}}
}

// Append implements framelog.Log. If ctx has ended, the error is ErrRefused.
func (l *MemLog) Append(ctx context.Context, expect uint64, f framelog.Frame) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("%w: %w", framelog.ErrRefused, err)
	}
	f.Body = bytes.Clone(f.Body)
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.last()
	if last != expect || f.Link.Segment < l.segment {
		return 0, fmt.Errorf("%w: expected %d, is %d", framelog.ErrWrongSequence, expect, last)
	}
	if f.Link.Segment > l.segment {
		return 0, fmt.Errorf("%w: segment %d", framelog.ErrSegmentGone, f.Link.Segment)
	}
	seq := l.next()
	l.store(seq, f)
	return seq, nil
}

// next returns the sequence number that the next frame gets. The caller holds mu.
func (l *MemLog) next() uint64 {
	if n := len(l.frames); n > 0 && l.frames[n-1].Link.Next > 0 {
		return l.frames[n-1].Link.Next
	}
	return l.last() + 1 + uint64(len(l.seqs))%l.gap
}

// Add stores a frame with the sequence number that Append would give it, whatever it continues.
func (l *MemLog) Add(f framelog.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.store(l.next(), f)
}

// store appends a frame. The caller holds mu.
func (l *MemLog) store(seq uint64, f framelog.Frame) {
	l.seqs, l.frames = append(l.seqs, seq), append(l.frames, f)
	l.sizes[f.Link.Segment] += int64(len(f.Body))
	if l.segment = f.Link.Segment; f.Link.Next > 0 {
		l.segment++
		l.first[l.segment] = f.Link.Next
	}
	close(l.grown)
	l.grown = make(chan struct{})
}

// Prepare implements framelog.Segmented.
func (l *MemLog) Prepare(ctx context.Context, number uint64) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first[number+1] == 0 {
		// the segment may have no frame yet
		l.first[number+1] = max(l.last()+1, l.first[number]) - 1 + framelog.SegmentGap
	}
	return l.first[number+1], nil
}

// Size implements framelog.Segmented. It returns 0 for a segment without a frame.
func (l *MemLog) Size(ctx context.Context, number uint64) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if number < l.dropped {
		return 0, fmt.Errorf("%w: segment %d", framelog.ErrSegmentGone, number)
	}
	return l.sizes[number], nil
}

// Segments implements framelog.Segmented.
func (l *MemLog) Segments(ctx context.Context) ([]framelog.Segment, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []framelog.Segment
	for n := l.dropped; n == l.dropped || l.first[n] > 0; n++ {
		all = append(all, framelog.Segment{Number: n, First: max(l.first[n], 1)})
	}
	return all, nil
}

// Drop implements framelog.Segmented. It returns nil for a segment that was dropped before, and an error for one
// that is not the first one, is not closed, or has no frame behind it.
func (l *MemLog) Drop(ctx context.Context, number uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case number < l.dropped:
		return nil
	case number > l.dropped || number >= l.segment:
		return fmt.Errorf("journaltest: segment %d is not to be dropped: it is not the first, or not closed", number)
	}
	i := sort.Search(len(l.seqs), func(i int) bool { return l.seqs[i] >= l.first[number+1] })
	if i == len(l.seqs) {
		return fmt.Errorf("journaltest: segment %d is not to be dropped: no frame is behind it", number)
	}
	l.dropped++
	l.seqs, l.frames = l.seqs[i:], l.frames[i:]
	return nil
}

// trimmed returns ErrTrimmed if the log had frames from seq on that are dropped. The caller holds mu.
func (l *MemLog) trimmed(seq uint64) error {
	if begins := l.first[l.dropped]; l.dropped > 0 && seq < begins {
		return fmt.Errorf("%w: at %d, not at %d", framelog.ErrTrimmed, begins, seq)
	}
	return nil
}

// Put stores a frame at a sequence number behind the last one, as a repaired journal has it.
func (l *MemLog) Put(seq uint64, f framelog.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.store(seq, f)
}

func (l *MemLog) last() uint64 {
	if len(l.seqs) == 0 {
		return 0
	}
	return l.seqs[len(l.seqs)-1]
}

// Tail implements framelog.Log.
func (l *MemLog) Tail(ctx context.Context) (framelog.Frame, uint64, error) {
	if err := ctx.Err(); err != nil {
		return framelog.Frame{}, 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.frames) == 0 {
		return framelog.Frame{}, 0, nil
	}
	return l.frames[len(l.frames)-1], l.last(), nil
}

// Get implements framelog.Log.
func (l *MemLog) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	if err := ctx.Err(); err != nil {
		return framelog.Frame{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.trimmed(seq); err != nil {
		return framelog.Frame{}, err
	}
	i := sort.Search(len(l.seqs), func(i int) bool { return l.seqs[i] >= seq })
	if i == len(l.seqs) || l.seqs[i] != seq {
		return framelog.Frame{}, fmt.Errorf("%w: %d", framelog.ErrGone, seq)
	}
	return l.frames[i], nil
}

// Scan implements framelog.Log.
func (l *MemLog) Scan(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	_, _, err := l.pass(ctx, from, fn)
	return err
}

// Follow implements framelog.Log.
func (l *MemLog) Follow(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	for {
		next, grown, err := l.pass(ctx, from, fn)
		if err != nil {
			return err
		}
		from = next
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pass calls fn with the frames from from on, without the lock, and returns from where to
// continue, and a channel that is closed when there are more.
func (l *MemLog) pass(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) (uint64, <-chan struct{},
	error,
) {
	l.mu.Lock()
	i := sort.Search(len(l.seqs), func(i int) bool { return l.seqs[i] >= from })
	seqs, frames, grown, trimmed := l.seqs[i:], l.frames[i:], l.grown, l.trimmed(from)
	l.mu.Unlock()
	if trimmed != nil {
		return from, nil, trimmed
	}
	for i, seq := range seqs {
		if err := ctx.Err(); err != nil {
			return from, nil, err
		}
		if err := fn(seq, frames[i]); err != nil {
			return from, nil, err
		}
		from = seq + 1
	}
	return from, grown, nil
}
