package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// elapsed returns the time since the machine was started. Unlike the monotonic clock of Go it counts the time during
// which the machine was suspended, in which the session of a holder may have been ended by others.
func elapsed() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil { // a kernel without it is older than Go allows
		return time.Since(began)
	}
	return time.Duration(t.Nano())
}

var began = time.Now()
