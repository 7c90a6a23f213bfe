//go:build unix

package runner

import "golang.org/x/sys/unix"

// nonblocking opens a pipe that nobody writes to without waiting.
const nonblocking = unix.O_NONBLOCK
