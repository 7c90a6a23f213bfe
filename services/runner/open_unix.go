//go:build unix

package runner

import "golang.org/x/sys/unix"

// nonblocking is the flag with which opening a pipe that has no writer does not block.
const nonblocking = unix.O_NONBLOCK
