//go:build clockstep

package clock

import (
	"os"
	"strings"
	"sync"
	"time"
)

// stepVariable is the environment variable with the name of a file. The file has a duration, such as "-1h30m", by
// which the clock of this process is ahead of the machine's. Tests change it to step the clock. Only builds with
// the tag clockstep, which are for such tests, read it.
const stepVariable = "QUARTET_TEST_CLOCK_STEP"

// step has the duration that the file of stepVariable had when it was last read.
var step struct {
	sync.Mutex
	by   time.Duration
	next time.Time // when it is read again
}

// now returns the time of the machine, moved by the step and by the time that has passed beyond it (see
// passedVariable). The result has no monotonic reading, so that the difference of two times includes a step between
// them, as it does for times that were stored.
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
