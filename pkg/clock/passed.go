//go:build clockstep

package clock

import (
	"os"
	"strings"
	"sync"
	"time"
)

// passedVariable is the environment variable with the name of a file. The file has a duration, which must never
// become shorter: how much time has passed beyond what the machine's clock shows. Unlike a step (see stepVariable),
// it counts as time that has passed: Monotonic includes it, and timers that it makes due fire. With it a benchmark
// lets a year pass.
const passedVariable = "QUARTET_TEST_CLOCK_PASSED"

// lookEach is how often the file is read.
const lookEach = 10 * time.Millisecond

// passes reports whether tests can let time pass that does not pass on the machine's clock.
const passes = true

// passed is the time that has passed for this process beyond the machine's clock.
var passed = &skipped{file: os.Getenv(passedVariable)}

// skipped is time that has passed beyond the machine's clock, with the timers that it can make due.
type skipped struct {
	file string

	begin   sync.Once
	mu      sync.Mutex
	by      time.Duration
	pending map[*skipTimer]struct{}
}

// read returns how much time has passed beyond the machine's clock. The first call starts to read the file regularly.
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

// skipTimer is a timer of the machine that is reset whenever time has passed beyond the machine's clock.
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

// Stop implements Timer. Time that passes later does not reset the timer any more.
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
	timer.set() // time may have passed since now was called
	return timer
}

// elapsed is the function that Monotonic returns for the machine's clock. To the time of that clock it adds what the
// file of passedVariable says has passed besides.
func elapsed() time.Time { return time.Now().Add(passed.read()) }
