//go:build clockstep

package clock

import (
	"os"
	"strings"
	"sync"
	"time"
)

// passedVariable names a file with a duration that has passed beyond the machine's clock, and must not become shorter. Unlike after a step,
// all of the process agrees that it has passed: Monotonic counts it, and timers fire that are due by it. A benchmark lives through a year so.
const passedVariable = "QUARTET_TEST_CLOCK_PASSED"

// lookEach is how often the file is read.
const lookEach = 10 * time.Millisecond

// passes reports whether time can pass without the machine's clock.
const passes = true

// passed is what has passed beyond the clock of this process.
var passed = &skipped{file: os.Getenv(passedVariable)}

// skipped is time that has passed beyond the machine's clock, and the timers that wait for it.
type skipped struct {
	file string

	begin   sync.Once
	mu      sync.Mutex
	by      time.Duration
	pending map[*skipTimer]struct{}
}

// read returns what has passed. The first call begins to look.
func (s *skipped) read() time.Duration {
	if s.file == "" {
		return 0
	}
	s.begin.Do(func() {
		s.look()
		go func() {
			for range time.Tick(lookEach) {
				s.look()
			}
		}()
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by
}

// look reads the file, and fires the timers that have become due.
func (s *skipped) look() {
	text, err := os.ReadFile(s.file)
	if err != nil {
		return
	}
	by, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		return
	}
	s.mu.Lock()
	more := by - s.by
	s.by = max(s.by, by)
	var again []*skipTimer
	if more > 0 {
		for t := range s.pending {
			again = append(again, t)
		}
	}
	s.mu.Unlock()
	for _, t := range again {
		t.set()
	}
}

// skipTimer is a timer of the machine that is set anew whenever time has passed.
type skipTimer struct {
	systemTimer

	of *skipped
	at time.Time
}

func (t *skipTimer) set() {
	left := t.at.Sub(now())
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if _, pending := t.of.pending[t]; !pending {
		return
	}
	if left <= 0 {
		delete(t.of.pending, t)
	}
	t.t.Reset(left)
}

// Stop implements Timer.
func (t *skipTimer) Stop() bool {
	t.of.mu.Lock()
	delete(t.of.pending, t)
	t.of.mu.Unlock()
	return t.systemTimer.Stop()
}

func timerAt(t time.Time) Timer {
	machine := systemTimer{time.NewTimer(t.Sub(now()))}
	if passed.file == "" {
		return machine
	}
	timer := &skipTimer{systemTimer: machine, of: passed, at: t}
	passed.mu.Lock()
	if passed.pending == nil {
		passed.pending = map[*skipTimer]struct{}{}
	}
	passed.pending[timer] = struct{}{}
	passed.mu.Unlock()
	timer.set() // what has passed meanwhile
	return timer
}

// elapsed returns times whose differences are how much time has passed, also beyond the machine's clock.
func elapsed() time.Time { return time.Now().Add(passed.read()) }
