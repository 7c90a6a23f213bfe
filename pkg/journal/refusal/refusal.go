// Package refusal has the errors with which a journal refuses a command or a read.
package refusal

import (
	"errors"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
)

// Values of the metadata key outcome (SPEC X1): None says that nothing was stored, Unknown that something may have
// been.
const (
	None    = "none"
	Unknown = "unknown"
)

// ErrNotHeld is the cause of every refusal of a partition that was closed or whose lease was lost, so that
// another process may hold it. A command that is refused with it stored nothing, unless its outcome is unknown.
var ErrNotHeld = errors.New("journal: the partition is not held here")

// Unavailable returns UNAVAILABLE with the reason STORAGE. outcome is None or Unknown. cause may be nil; callers do
// not see it.
func Unavailable(outcome, msg string, cause error) error {
	e := fault.New(codes.Unavailable, fault.Storage, msg, "outcome", outcome)
	if cause != nil {
		e = e.WithCause(cause)
	}
	return e
}

// Damaged returns UNAVAILABLE with the reason STORAGE and the outcome None for a request that needs something damaged
// of a partition's journal. Callers see text, which says what that is, and the partition's name under the metadata
// key damaged; they do not see cause.
func Damaged(text, partition string, cause error) error {
	return fault.New(codes.Unavailable, fault.Storage, text, "outcome", None, "damaged", partition).WithCause(cause)
}

// Unreadable returns the error for a request that needs a frame which cannot be read: Damaged if cause is a
// *framelog.Broken, and otherwise Unavailable.
func Unreadable(cause error) error {
	if broken := (*framelog.Broken)(nil); errors.As(cause, &broken) {
		return Damaged(broken.Error()+"; what it has cannot be shown until it is repaired", broken.Partition, cause)
	}
	return Unavailable(None, "the journal could not be read back", cause)
}

// LeaseLost returns the error for a read, or for a command that stored no events, when the lease of the partition is
// over: another process may have written since.
func LeaseLost() error {
	return Unavailable(None, "the lease of the partition is over, so the state here may be outdated; try again",
		ErrNotHeld)
}

// TooLarge returns TOO_LARGE for an event or a command, which what names, because of its encoded size.
func TooLarge(what string, size, limit int) error {
	return fault.TooLarge.Newf("%s has %d bytes, at most %d are allowed; send less at once", what, size, limit)
}

// ReplayError is a log that the state cannot be built from. Trying again cannot help.
type ReplayError struct{ Cause error }

func (e *ReplayError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *ReplayError) Unwrap() error { return e.Cause }

// DamageError is the cause with which a partition ended whose log could not be loaded because it is damaged.
type DamageError struct {
	Partition string
	Cause     error
}

func (e *DamageError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *DamageError) Unwrap() error { return e.Cause }
