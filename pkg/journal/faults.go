package journal

import (
	"errors"

	"quartet/pkg/journal/refusal"
)

// refusal refuses a command or a read of a partition that has ended, for a cause that callers may learn if the log is
// damaged.
func (p *Partition[S]) refusal() error {
	cause := ErrNotHeld
	if err := p.failed.Load(); err != nil {
		cause = *err
	}
	var damage *refusal.DamageError
	if errors.As(cause, &damage) {
		return refusal.Damaged(damage.Error()+"; nothing in this partition can be used until it is repaired, and the rest is served", damage.Partition, cause)
	}
	return refusal.Unavailable(refusal.None, "the partition is not held here", cause)
}
