//go:build !clockstep

package clock

import "time"

// passes reports whether tests can let time pass that does not pass on the machine's clock, which they can only
// in builds with the tag clockstep.
const passes = false

// now returns the time of the machine.
func now() time.Time { return time.Now() }

// elapsed is the function that Monotonic returns for the machine's clock.
func elapsed() time.Time { return time.Now() }

func timerAt(t time.Time) Timer { return systemTimer{time.NewTimer(t.Sub(now()))} }
