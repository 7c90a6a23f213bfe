package journal

import (
	"errors"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
)

// Values of the metadata key outcome (SPEC X1).
const (
	outcomeNone    = "none"
	outcomeUnknown = "unknown"
)

// unavailable returns UNAVAILABLE with the reason STORAGE. cause may be nil; callers do not see it.
func unavailable(outcome, msg string, cause error) error {
	e := fault.New(codes.Unavailable, fault.Storage, msg, "outcome", outcome)
	if cause != nil {
		e = e.WithCause(cause)
	}
	return e
}

// refusal refuses a command or a read of a partition that has ended, for a cause that callers may learn if the log is
// damaged.
func (p *Partition[S]) refusal() error {
	cause := ErrNotHeld
	if err := p.failed.Load(); err != nil {
		cause = *err
	}
	var damage *damageError
	if errors.As(cause, &damage) {
		return fault.New(codes.Unavailable, fault.Storage, damage.Error()+"; nothing in this partition can be used until it is repaired, and the rest is served", "outcome", outcomeNone, "damaged", damage.partition).WithCause(cause)
	}
	return unavailable(outcomeNone, "the partition is not held here", cause)
}

// unreadable refuses what needs a frame that cannot be read, and names the damage if that is why.
func unreadable(cause error) error {
	if broken := (*framelog.Broken)(nil); errors.As(cause, &broken) {
		return fault.New(codes.Unavailable, fault.Storage, broken.Error()+"; what it has cannot be shown until it is repaired", "outcome", outcomeNone, "damaged", broken.Partition).WithCause(cause)
	}
	return unavailable(outcomeNone, "the journal could not be read back", cause)
}

// leaseLost refuses a read, or a command that stored no events, when the lease of the partition is over, because
// another process may have written since.
func leaseLost() error {
	return unavailable(outcomeNone, "the lease of the partition is over, so the state here may be outdated; try again", ErrNotHeld)
}

// internal returns INTERNAL; callers do not see the cause.
func internal(cause error) error { return fault.Internal(cause) }

// tooLarge refuses an event or a command because of its encoded size.
func tooLarge(what string, size, limit int) error {
	return fault.TooLarge.Newf("%s has %d bytes, at most %d are allowed; send less at once", what, size, limit)
}
