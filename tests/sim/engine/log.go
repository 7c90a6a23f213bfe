package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"quartet/pkg/journal/framelog"
)

// ErrNoAnswer is the ambiguous error of an append whose answer did not arrive.
var ErrNoAnswer = errors.New("sim: no answer")

// Disk is what the logs of a run share: whether there is room.
type Disk struct{ full atomic.Bool }

// Fill makes every append fail without an answer until it is called with false.
func (d *Disk) Fill(full bool) { d.full.Store(full) }

// Full reports whether there is no room.
func (d *Disk) Full() bool { return d.full.Load() }

// Log is a log as one process sees it. An append is a crossing, at which the simulation may delay it, let it fail or
// end the process, and the answer to the append is another one. A read is one crossing, but Tail, Size and Follow
// are none.
type Log struct {
	Queue *Queue
	Of    *Process
	Name  string
	Inner framelog.Log
	Disk  *Disk
	// Stored, if set, is called for each frame that Inner has stored, before anybody learns of it.
	Stored func(seq uint64, f framelog.Frame)
}

var (
	_ framelog.Log       = (*Log)(nil)
	_ framelog.Segmented = (*Log)(nil)
)

var (
	appendFaults = []Outcome{Lost, Unanswered, Doubled, Refused, Busy, Delayed}
	answerFaults = []Outcome{Lost}
	readFaults   = []Outcome{Lost}
)

// Append implements framelog.Log.
func (l *Log) Append(ctx context.Context, expect uint64, f framelog.Frame) (uint64, error) {
	edge := fmt.Sprintf("log %s append %d %s", l.Name, expect, f.ID)
	o, err := l.Queue.Park(ctx, Crossing{Edge: edge, Of: l.Of, Faults: appendFaults})
	if err != nil {
		return 0, err
	}
	if l.Disk.Full() && o != Died {
		o = Lost
	}
	switch o {
	case Died:
		return 0, ErrDead
	case Kept:
		_, _ = l.store(expect, f)
		return 0, ErrDead
	case Lost:
		return 0, ErrNoAnswer
	case Refused:
		return 0, fmt.Errorf("%w: by the simulation", framelog.ErrRefused)
	case Busy:
		return 0, fmt.Errorf("%w: by the simulation", framelog.ErrBusy)
	case Unanswered:
		_, _ = l.store(expect, f)
		return 0, ErrNoAnswer
	case Delayed:
		f.Body = bytes.Clone(f.Body)
		go l.late(expect, f)
		return 0, ErrNoAnswer
	default:
	}
	seq, err := l.store(expect, f)
	if o == Doubled { // the answer is that of the second one
		seq, err = l.store(expect, f)
	}
	o, parkErr := l.Queue.Park(ctx, Crossing{Edge: "answer " + edge, Of: l.Of, Faults: answerFaults})
	switch {
	case parkErr != nil:
		return 0, parkErr
	case o == Died || o == Kept:
		return 0, ErrDead
	case o == Lost:
		return 0, ErrNoAnswer
	}
	return seq, err
}

// late stores a frame for whose answer nobody waits any more. The network has the frame, so it outlives its process.
func (l *Log) late(expect uint64, f framelog.Frame) {
	o, _ := l.Queue.Park(context.Background(), Crossing{
		Edge:   fmt.Sprintf("late %s append %d %s", l.Name, expect, f.ID),
		Faults: []Outcome{Lost},
	})
	if o == Pass && !l.Disk.Full() {
		_, _ = l.store(expect, f)
	}
}

// store appends to the inner log, whatever becomes of the caller.
func (l *Log) store(expect uint64, f framelog.Frame) (uint64, error) {
	seq, err := l.Inner.Append(context.Background(), expect, f)
	if err == nil && l.Stored != nil {
		l.Stored(seq, f)
	}
	return seq, err
}

func (l *Log) read(ctx context.Context, what string) error {
	return look(ctx, l.Queue, l.Of, "log "+l.Name+" "+what)
}

// Tail implements framelog.Log. It is no crossing: followers ask for it once a second.
func (l *Log) Tail(ctx context.Context) (framelog.Frame, uint64, error) {
	if l.Of.isDead() {
		return framelog.Frame{}, 0, ErrDead
	}
	return l.Inner.Tail(ctx)
}

// Get implements framelog.Log.
func (l *Log) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	if err := l.read(ctx, fmt.Sprintf("get %d", seq)); err != nil {
		return framelog.Frame{}, err
	}
	return l.Inner.Get(ctx, seq)
}

// Scan implements framelog.Log.
func (l *Log) Scan(ctx context.Context, from uint64, fn func(seq uint64, f framelog.Frame) error) error {
	if err := l.read(ctx, fmt.Sprintf("scan %d", from)); err != nil {
		return err
	}
	return l.Inner.Scan(ctx, from, fn)
}

// Follow implements framelog.Log. Its frames are passed on by Source.
func (l *Log) Follow(ctx context.Context, from uint64, fn func(seq uint64, f framelog.Frame) error) error {
	if l.Of.isDead() {
		return ErrDead
	}
	return l.Inner.Follow(ctx, from, fn)
}

// Prepare implements framelog.Segmented. Inner must implement it too.
func (l *Log) Prepare(ctx context.Context, number uint64) (uint64, error) {
	if err := l.read(ctx, fmt.Sprintf("prepare %d", number)); err != nil {
		return 0, err
	}
	return l.Inner.(framelog.Segmented).Prepare(context.Background(), number)
}

// Size implements framelog.Segmented. It is no crossing: it changes nothing.
func (l *Log) Size(ctx context.Context, number uint64) (int64, error) {
	if l.Of.isDead() {
		return 0, ErrDead
	}
	return l.Inner.(framelog.Segmented).Size(ctx, number)
}

// Segments implements framelog.Segmented.
func (l *Log) Segments(ctx context.Context) ([]framelog.Segment, error) {
	if err := l.read(ctx, "segments"); err != nil {
		return nil, err
	}
	return l.Inner.(framelog.Segmented).Segments(context.Background())
}

// Drop implements framelog.Segmented. It, and its answer, may be lost.
func (l *Log) Drop(ctx context.Context, number uint64) error {
	return change(ctx, l.Queue, l.Of, nil, fmt.Sprintf("log %s drop %d", l.Name, number), func() error {
		return l.Inner.(framelog.Segmented).Drop(context.Background(), number)
	})
}
