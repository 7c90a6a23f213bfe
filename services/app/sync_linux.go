package app

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// syncDir syncs the file system of dir. A restore does not sync every message.
func syncDir(dir string) error {
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
