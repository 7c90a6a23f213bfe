//go:build !clockstep

package clock

import "time"

// passes reports whether time can pass without the machine's clock; it does in builds for tests only.
const passes = false

// now returns the time of the machine.
func now() time.Time { return time.Now() }

// elapsed returns times whose differences are how much time has passed.
func elapsed() time.Time { return time.Now() }

func timerAt(t time.Time) Timer { return systemTimer{time.NewTimer(t.Sub(now()))} }
