//go:build !clockstep

package clock

import "time"

// now returns the time of the machine.
func now() time.Time { return time.Now() }
