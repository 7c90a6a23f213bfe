//go:build unix

package session

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockContexts waits until no other process holds the lock of a file, and takes it. The end of the process releases it
// too.
func lockContexts(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}
