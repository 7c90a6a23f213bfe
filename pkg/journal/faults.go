package journal

import (
	"errors"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
)

// Values of the metadata key outcome (SPEC X1): outcomeNone says that nothing was stored, outcomeUnknown that something
// may have been.
const (
	outcomeNone    = "none"
	outcomeUnknown = "unknown"
)

// ErrNotHeld is the cause of every refusal of a partition that was closed or whose lease was lost, so that
// another process may hold it. A command that is refused with it stored nothing, unless its outcome is unknown.
var ErrNotHeld = errors.New("journal: the partition is not held here")

// unavailable returns UNAVAILABLE with the reason STORAGE. outcome is outcomeNone or outcomeUnknown. cause may be nil;
// callers do not see it.
func unavailable(outcome, msg string, cause error) error {
	e := fault.New(codes.Unavailable, fault.Storage, msg, "outcome", outcome)
	if cause != nil {
		e = e.WithCause(cause)
	}
	return e
}

// refuseDamaged returns UNAVAILABLE with the reason STORAGE and outcomeNone for a request that needs a damaged part
// of a partition's journal. Callers see text, which names that part, and the partition's name under the
// metadata key damaged; they do not see cause.
func refuseDamaged(text, partition string, cause error) error {
	return fault.New(codes.Unavailable, fault.Storage, text, "outcome", outcomeNone, "damaged", partition).
		WithCause(cause)
}

// unreadable returns the error for a request that needs a frame which cannot be read: that of refuseDamaged if cause
// is a *framelog.Broken, and otherwise UNAVAILABLE.
func unreadable(cause error) error {
	var broken *framelog.Broken
	if errors.As(cause, &broken) {
		return refuseDamaged(broken.Error()+"; what it has cannot be shown until it is repaired", broken.Partition,
			cause)
	}
	return unavailable(outcomeNone, "the journal could not be read back", cause)
}

// refusal returns the error for a command or a read of a partition that has ended. Its text names the damage if the
// log is damaged; any other cause is in the error, but callers do not see it.
func (p *Partition[S]) refusal() error {
	cause := ErrNotHeld
	if err := p.failed.Load(); err != nil {
		cause = *err
	}
	var damage *damageError
	if errors.As(cause, &damage) {
		return refuseDamaged(damage.Error()+"; nothing in this partition can be used until it is repaired, and the "+
			"rest is served", damage.Partition, cause)
	}
	return unavailable(outcomeNone, "the partition is not held here", cause)
}

// leaseLost returns the error for a read, or for a command that stored no events, when the lease of the partition is
// over: another process may have written since.
func leaseLost() error {
	return unavailable(outcomeNone, "the lease of the partition is over, so the state here may be outdated; try again",
		ErrNotHeld)
}

// tooLarge returns TOO_LARGE for an event or a command, which what names, because of its encoded size.
func tooLarge(what string, size, limit int) error {
	return fault.TooLarge.Newf("%s has %d bytes, at most %d are allowed; send less at once", what, size, limit)
}

// replayError is a log that the state cannot be built from. Trying again cannot help.
type replayError struct{ Cause error }

func (e *replayError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *replayError) Unwrap() error { return e.Cause }

// damageError is the cause with which a partition ended whose log could not be loaded because it is damaged.
type damageError struct {
	Partition string
	Cause     error
}

func (e *damageError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *damageError) Unwrap() error { return e.Cause }
