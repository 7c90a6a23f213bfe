package repair

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// swap exchanges two directories at once.
func swap(a, b string) error {
	if err := unix.RenamexNp(a, b, unix.RENAME_SWAP); err != nil {
		return fmt.Errorf("exchange %s and %s: %w", a, b, err)
	}
	return nil
}
