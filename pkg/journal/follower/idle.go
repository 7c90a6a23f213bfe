package follower

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"quartet/pkg/clock"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
)

// IdleInterval is how long nothing must be written until the log is asked, and the time between two questions about the
// same frame. All followers of a partition in a process ask once together.
const IdleInterval = 10 * time.Second

// Watch makes the followers of a process check that the log still has the frames that they read. Its zero value is not
// ready to use; use NewWatch. It is safe for concurrent use.
type Watch struct {
	clock clock.Clock
	mu    sync.Mutex
	looks map[string]*look
}

// NewWatch returns a Watch that waits on a clock.
func NewWatch(c clock.Clock) *Watch { return &Watch{clock: c, looks: map[string]*look{}} }

// Source returns src. While its Follow receives no frame, it asks the log whether it still has the last one. If it does
// not, Follow verifies the position as it does at its beginning, and ends with a *framelog.Broken if the log is
// damaged.
func (w *Watch) Source(src Source) Source {
	name := framelog.PartitionName(src.Plane(), src.Partition())
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looks[name] == nil {
		w.looks[name] = &look{doubted: make(chan struct{})}
	}
	return watchedSource{src, w.clock, w.looks[name]}
}

// look is what the followers of one partition share.
type look struct {
	mu      sync.Mutex
	end     framelog.End  // about which the log was asked last
	askedAt time.Time     // when it was asked
	doubted chan struct{} // closed and replaced when the log turned out not to have the frame at end
}

// due reports whether the log is to be asked about an end now, and records that it is.
func (l *look) due(end framelog.End, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end == end && now.Sub(l.askedAt) < IdleInterval {
		return false
	}
	l.end, l.askedAt = end, now
	return true
}

// doubts returns the channel that the next call of doubt closes. A follower calls doubt when it finds that the log
// does not have the frame that it read last.
func (l *look) doubts() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.doubted
}

// doubt wakes all followers.
func (l *look) doubt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.doubted)
	l.doubted = make(chan struct{})
}

// watchedSource is a Source whose Follow looks, while nothing is written, whether the log still has what it read.
type watchedSource struct {
	Source
	clock clock.Clock
	look  *look
}

// Follow implements Source. When the log seems not to have any more what was read, it follows again behind
// the last frame that it passed to fn, and thereby verifies that the log has that frame.
func (s watchedSource) Follow(ctx context.Context, after framelog.End,
	fn func(end framelog.End, lines []event.Line) error,
) error {
	for {
		next, again, err := s.follow(ctx, after, fn)
		if !again {
			return err
		}
		after = next
	}
}

// follow follows until there is doubt about what was read; again is then true, and next is where to continue.
func (s watchedSource) follow(ctx context.Context, after framelog.End,
	fn func(end framelog.End, lines []event.Line) error,
) (next framelog.End, again bool, err error) {
	var read atomic.Pointer[framelog.End]
	read.Store(&after)
	following, stop := context.WithCancel(ctx)
	defer stop()

	// watch ends the following when there is doubt.
	doubted := make(chan bool, 1)
	go func() {
		defer stop()
		doubted <- s.watch(following, &read)
	}()

	var fnErr error
	err = s.Source.Follow(following, after, func(end framelog.End, lines []event.Line) error {
		fnErr = fn(end, lines)
		if fnErr == nil {
			read.Store(&end)
		}
		return fnErr
	})
	stop()
	// It follows again only if nothing but the doubt has ended the following.
	again = <-doubted && fnErr == nil && ctx.Err() == nil && errors.Is(err, context.Canceled)
	return *read.Load(), again, err
}

// watch returns true when the log does not have the frame at *read any more, or another follower doubts it, and false
// when ctx ends. If the log cannot answer, it asks again after IdleInterval.
func (s watchedSource) watch(ctx context.Context, read *atomic.Pointer[framelog.End]) bool {
	previous, doubted := framelog.End{}, s.look.doubts()
	for {
		timer := s.clock.TimerAt(s.clock.Now().Add(IdleInterval))
		select {
		case <-timer.C():
		case <-doubted:
			timer.Stop()
			return true
		case <-ctx.Done():
			timer.Stop()
			return false
		}

		// Ask the log only if nothing was read in the interval, and nobody else asked.
		end := *read.Load()
		idle := end == previous && end.Seq > 0 && !end.Hash.IsZero()
		previous = end
		if !idle || !s.look.due(end, s.clock.Now()) {
			continue
		}
		got, err := s.At(ctx, end.Seq)
		if errors.Is(err, framelog.ErrNoFrame) || err == nil && got.Hash != end.Hash {
			s.look.doubt()
			return true
		}
	}
}
