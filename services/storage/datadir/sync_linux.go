package datadir

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Sync writes everything to disk that was written to the file system of dir, because a
// restore does not sync each file and message.
func Sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
