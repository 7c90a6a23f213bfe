package snapshot

import (
	"errors"
	"fmt"

	"quartet/pkg/resident"
)

// Guarded calls fn, and returns an error if it panics because an evicted owner cannot be read. Other panics go on.
func Guarded(fn func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if err = PanicError(r); !errors.Is(err, resident.ErrUnreadable) {
				panic(r)
			}
		}
	}()
	fn()
	return nil
}

// PanicError returns the error for a panic with the value r. If r is an error, it is wrapped.
func PanicError(r any) error {
	if err, is := r.(error); is {
		return fmt.Errorf("panic: %w", err)
	}
	return fmt.Errorf("panic: %v", r)
}
