package clock

import (
	"slices"
	"sync"
	"time"
)

// Clock tells the time and makes timers.
type Clock interface {
	Now() time.Time
	// TimerAt returns a timer that sends once at t, or immediately if t has passed. It takes
	// a time rather than a duration, so that the timer is not late if the clock moves between
	// the calls of Now and TimerAt.
	TimerAt(t time.Time) Timer
}

// Timer sends once on C.
type Timer interface {
	C() <-chan time.Time
	// Stop releases the timer. It returns false if the timer has fired or was stopped already.
	Stop() bool
}

type system struct{}

// System returns the machine's clock.
func System() Clock { return system{} }

func (system) Now() time.Time { return now() }

func (system) TimerAt(t time.Time) Timer { return timerAt(t) }

type systemTimer struct{ t *time.Timer }

func (s systemTimer) C() <-chan time.Time { return s.t.C }
func (s systemTimer) Stop() bool          { return s.t.Stop() }

// Monotonic returns a function whose results differ by how much time has passed on c. For the machine's clock they
// are not affected when the clock is set.
func Monotonic(c Clock) func() time.Time {
	if _, ok := c.(system); ok {
		return elapsed
	}
	return c.Now
}

// AfterFunc calls f in a goroutine of its own when d has passed on c. If stop is called before that, f is not
// called. stop does not wait for a call of f.
func AfterFunc(c Clock, d time.Duration, f func()) (stop func()) {
	if _, ok := c.(system); ok && !passes {
		t := time.AfterFunc(d, f)
		return func() { t.Stop() }
	}
	timer, stopped := c.TimerAt(c.Now().Add(d)), make(chan struct{})
	go func() {
		select {
		case <-timer.C():
			f()
		case <-stopped:
		}
	}()
	return sync.OnceFunc(func() {
		timer.Stop()
		close(stopped)
	})
}

// Fake is a clock that stands still until Advance or Set moves it.
type Fake struct {
	mu      sync.Mutex
	now     time.Time
	timers  []*fakeTimer
	changed chan struct{} // closed and replaced whenever timers changes
}

// NewFake returns a Fake that shows now.
func NewFake(now time.Time) *Fake { return &Fake{now: now, changed: make(chan struct{})} }

type fakeTimer struct {
	clock *Fake
	at    time.Time
	c     chan time.Time
}

// Now returns the time that the test has set.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// TimerAt returns a timer that fires when Advance or Set moves the clock to t or past it, and at once if
// the clock shows t or a later time already.
func (f *Fake) TimerAt(t time.Time) Timer {
	f.mu.Lock()
	defer f.mu.Unlock()
	ft := &fakeTimer{clock: f, at: t, c: make(chan time.Time, 1)}
	if !t.After(f.now) {
		ft.c <- f.now
		return ft
	}
	f.timers = append(f.timers, ft)
	f.signal()
	return ft
}

// Advance moves the clock by d and fires the timers that are due then, earliest first.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.move(f.now.Add(d))
}

// Set moves the clock to t, which may be earlier than Now, and fires the timers that are due then.
func (f *Fake) Set(t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.move(t)
}

func (f *Fake) move(to time.Time) {
	f.now = to
	slices.SortStableFunc(f.timers, func(a, b *fakeTimer) int { return a.at.Compare(b.at) })
	n := 0
	for n < len(f.timers) && !f.timers[n].at.After(to) {
		f.timers[n].c <- to
		n++
	}
	f.timers = slices.Delete(f.timers, 0, n)
	f.signal()
}

// AwaitTimers blocks until at least n timers are pending, so that a test can
// advance only when the code under test is waiting.
func (f *Fake) AwaitTimers(n int) {
	for {
		f.mu.Lock()
		pending, changed := len(f.timers), f.changed
		f.mu.Unlock()
		if pending >= n {
			return
		}
		<-changed
	}
}

func (f *Fake) signal() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (t *fakeTimer) C() <-chan time.Time { return t.c }

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	i := slices.Index(t.clock.timers, t)
	if i < 0 {
		return false
	}
	t.clock.timers = slices.Delete(t.clock.timers, i, i+1)
	t.clock.signal()
	return true
}
