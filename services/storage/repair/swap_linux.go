package repair

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// swap exchanges two directories at once.
func swap(a, b string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %s and %s: %w", a, b, err)
	}
	return nil
}
