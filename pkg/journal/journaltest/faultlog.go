package journaltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"quartet/pkg/journal/framelog"
)

// Fault is what happens to one append.
type Fault int

// The faults. AnswerLost, NotSent, Frozen, LandsBefore and LandsAfter look
// alike to the writer: an error that does not say whether the frame is stored.
const (
	None        Fault = iota
	Refused           // not stored, and the writer knows
	Busy              // not stored, try again (10164)
	Late              // stored at once, answered when Release is called
	AnswerLost        // stored, the writer gets an ambiguous error
	NotSent           // not stored, the writer gets an ambiguous error
	Frozen            // not stored, the writer waits until its time is over
	LandsBefore       // ambiguous; stored just before the next append
	LandsAfter        // ambiguous; sent just after the next append, behind the sequence that it expected at first
	Duplicated        // sent twice; the answer is the first one's
	HeldRefused       // Refused, but only when Release is called
	Doubted           // sent twice; the answer is the second one's
	Last
)

// Faults that are not among those up to Last.
const (
	Full Fault = Last + 1 + iota // refused, because the store is full
	Held                         // appended, but only when Release is called
)

// ErrLost is the ambiguous error.
var ErrLost = errors.New("faultlog: no answer")

// FaultLog is a framelog.Log with faults.
type FaultLog struct {
	framelog.Log // what is not overridden passes through

	limit atomic.Int64 // of bodies; see Limit

	mu      sync.Mutex
	faults  []Fault
	reads   int    // how many of the next calls fail; see FailReads
	stale   int    // how many of the next scans show nothing
	before  []late // to be appended just before the next append
	after   []late // to be appended just after the next append
	release chan struct{}
	held    chan struct{} // one for each append that waits for Release
	appends int

	gets, getting, mostGets int
}

type late struct {
	expect uint64
	frame  framelog.Frame
}

var (
	_ framelog.Log       = (*FaultLog)(nil)
	_ framelog.Segmented = (*FaultLog)(nil)
)

// NewFaultLog wraps a log, which must be a framelog.Segmented if its segments are used. Until faults are set it
// behaves like inner.
func NewFaultLog(inner framelog.Log) *FaultLog {
	return &FaultLog{Log: inner, release: make(chan struct{}), held: make(chan struct{}, 64)}
}

// Inject queues faults for the next appends, one for each append, in order.
func (l *FaultLog) Inject(faults ...Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, faults...)
}

// FailReads makes the next n calls of Scan, Tail, Prepare, Size, Segments and Drop fail.
func (l *FaultLog) FailReads(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads = n
}

// StaleReads makes the next n Scans return nothing, as a reader that lags does.
func (l *FaultLog) StaleReads(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stale = n
}

// Heal discards all faults that have not occurred yet.
func (l *FaultLog) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults, l.reads, l.stale = nil, 0, 0
}

// Release continues all appends that wait for it: those that are Late, HeldRefused or Held.
func (l *FaultLog) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.release)
	l.release = make(chan struct{})
}

// Held returns a channel that receives a value for each append that waits for Release.
func (l *FaultLog) Held() <-chan struct{} { return l.held }

// Appends returns how often Append was called.
func (l *FaultLog) Appends() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appends
}

// Get implements framelog.Log. It counts the calls for Gets.
func (l *FaultLog) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	l.mu.Lock()
	l.gets++
	l.getting++
	l.mostGets = max(l.mostGets, l.getting)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.getting--
		l.mu.Unlock()
	}()
	return l.Log.Get(ctx, seq)
}

// Gets returns how often Get was called, and the largest number of concurrent calls.
func (l *FaultLog) Gets() (calls, atOnce int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gets, l.mostGets
}

func (l *FaultLog) next() (f Fault, before, after []late, release chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.appends++
	if len(l.faults) > 0 {
		f, l.faults = l.faults[0], l.faults[1:]
	}
	before, after = l.before, l.after
	l.before, l.after = nil, nil
	return f, before, after, l.release
}

// Append implements framelog.Log.
func (l *FaultLog) Append(ctx context.Context, expect uint64, f framelog.Frame) (uint64, error) {
	fault, before, after, release := l.next()
	l.land(ctx, before)
	defer l.land(ctx, after)
	kept := f
	kept.Body = bytes.Clone(f.Body)
	switch fault {
	case None, Last:
	case Refused:
		return 0, fmt.Errorf("%w: on order", framelog.ErrRefused)
	case Full:
		return 0, fmt.Errorf("%w: on order", framelog.ErrFull)
	case Held:
		l.held <- struct{}{}
		<-release
	case HeldRefused:
		l.held <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return 0, fmt.Errorf("%w: on order", framelog.ErrRefused)
	case Busy:
		return 0, fmt.Errorf("%w: on order", framelog.ErrBusy)
	case Late:
		seq, err := l.Log.Append(ctx, expect, f)
		l.held <- struct{}{}
		select {
		case <-release:
			return seq, err
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	case AnswerLost:
		_, _ = l.Log.Append(ctx, expect, kept)
		return 0, ErrLost
	case NotSent:
		return 0, ErrLost
	case Frozen:
		<-ctx.Done()
		return 0, ctx.Err()
	case LandsBefore, LandsAfter:
		l.mu.Lock()
		defer l.mu.Unlock()
		if fault == LandsBefore {
			l.before = append(l.before, late{expect, kept})
		} else {
			l.after = append(l.after, late{expect, kept})
		}
		return 0, ErrLost
	case Duplicated:
		seq, err := l.Log.Append(ctx, expect, f)
		l.land(ctx, []late{{expect, kept}})
		return seq, err
	case Doubted:
		l.land(ctx, []late{{expect, kept}})
		return l.Log.Append(ctx, expect, f)
	}
	if len(f.Body) > l.MaxBody() {
		return 0, fmt.Errorf("%w: on order", framelog.ErrTooLarge)
	}
	return l.Log.Append(ctx, expect, f)
}

// Limit sets how large the body of a frame may be from now on.
func (l *FaultLog) Limit(most int) { l.limit.Store(int64(most)) }

// MaxBody implements framelog.Bounded.
func (l *FaultLog) MaxBody() int {
	if most := l.limit.Load(); most > 0 {
		return int(most)
	}
	if b, ok := l.Log.(framelog.Bounded); ok {
		return b.MaxBody()
	}
	return math.MaxInt
}

// land appends the frames of earlier faults and discards the results.
func (l *FaultLog) land(ctx context.Context, all []late) {
	for _, x := range all {
		_, _ = l.Log.Append(ctx, x.expect, x.frame)
	}
}

func (l *FaultLog) readFault() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reads > 0 {
		l.reads--
		return ErrLost
	}
	return nil
}

func (l *FaultLog) blind() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stale > 0 {
		l.stale--
		return true
	}
	return false
}

// Tail implements framelog.Log.
func (l *FaultLog) Tail(ctx context.Context) (framelog.Frame, uint64, error) {
	if err := l.readFault(); err != nil {
		return framelog.Frame{}, 0, err
	}
	return l.Log.Tail(ctx)
}

// Scan implements framelog.Log. It returns ErrLost if FailReads asked for this read to fail, and nil without calling fn
// if StaleReads asked for this one to show nothing.
func (l *FaultLog) Scan(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	if err := l.readFault(); err != nil {
		return err
	}
	if l.blind() {
		return nil
	}
	return l.Log.Scan(ctx, from, fn)
}

// Prepare implements framelog.Segmented, as the inner log does, with the faults of reads.
func (l *FaultLog) Prepare(ctx context.Context, number uint64) (uint64, error) {
	if err := l.readFault(); err != nil {
		return 0, err
	}
	return l.Log.(framelog.Segmented).Prepare(ctx, number)
}

// Size implements framelog.Segmented, as the inner log does, with the faults of reads.
func (l *FaultLog) Size(ctx context.Context, number uint64) (int64, error) {
	if err := l.readFault(); err != nil {
		return 0, err
	}
	return l.Log.(framelog.Segmented).Size(ctx, number)
}

// Segments implements framelog.Segmented.
func (l *FaultLog) Segments(ctx context.Context) ([]framelog.Segment, error) {
	if err := l.readFault(); err != nil {
		return nil, err
	}
	return l.Log.(framelog.Segmented).Segments(ctx)
}

// Drop implements framelog.Segmented.
func (l *FaultLog) Drop(ctx context.Context, number uint64) error {
	if err := l.readFault(); err != nil {
		return err
	}
	return l.Log.(framelog.Segmented).Drop(ctx, number)
}
