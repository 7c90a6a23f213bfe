//go:build unix

package keyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// lock prevents other processes from updating key files in a directory until unlock is called. It locks the
// directory itself, so that no lock file is needed. If another process has the lock, it returns an error.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = d.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another process changes the key file in %s; wait for it and repeat the command",
				dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { _ = d.Close() }, nil
}

// chown gives f the owner of like, if that is another one.
func chown(f *os.File, like fs.FileInfo) error {
	of, ok := like.Sys().(*syscall.Stat_t)
	if !ok || int(of.Uid) == os.Geteuid() && int(of.Gid) == os.Getegid() {
		return nil
	}
	return f.Chown(int(of.Uid), int(of.Gid))
}

// syncDir makes a rename or a link in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
