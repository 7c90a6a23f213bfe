//go:build !linux

package lease

import "time"

// elapsed returns the time since the process began, by the monotonic clock of Go. On these systems that clock may stop
// while the machine is suspended: a holder that wakes may then show what it read before for up to 0.6 terms. Its writes
// are refused by the log in any case.
func elapsed() time.Duration { return time.Since(began) }

var began = time.Now()
