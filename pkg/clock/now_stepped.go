//go:build clockstep

package clock

import (
	"os"
	"strings"
	"sync"
	"time"
)

// stepVariable names a file with a duration, such as "-1h30m", by which the clock of this build is ahead of the machine's.
// Builds with the tag clockstep are for tests of what a step of the clock does; no other build has this.
const stepVariable = "QUARTET_TEST_CLOCK_STEP"

// step is what the file said when it was last read.
var step struct {
	sync.Mutex
	by   time.Duration
	next time.Time // when it is read again
}

// now returns the time of the machine, moved by the step and by what has passed beyond it. It has no monotonic reading: a duration between two times is that
// of their clocks, as for times that were stored.
func now() time.Time {
	real := time.Now()
	step.Lock()
	defer step.Unlock()
	if real.After(step.next) {
		step.next = real.Add(50 * time.Millisecond)
		if text, err := os.ReadFile(os.Getenv(stepVariable)); err == nil {
			if by, err := time.ParseDuration(strings.TrimSpace(string(text))); err == nil {
				step.by = by
			}
		}
	}
	return real.Round(0).Add(step.by + passed.read())
}
