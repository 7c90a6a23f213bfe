package journal

import (
	"errors"

	"quartet/pkg/journal/refusal"
)

// refusal returns the error for a command or a read of a partition that has ended. Its text names the damage if the
// log is damaged; any other cause is in the error, but callers do not see it.
func (p *Partition[S]) refusal() error {
	cause := ErrNotHeld
	if err := p.failed.Load(); err != nil {
		cause = *err
	}
	var damage *refusal.DamageError
	if errors.As(cause, &damage) {
		return refusal.Damaged(damage.Error()+"; nothing in this partition can be used until it is repaired, and the "+
			"rest is served", damage.Partition, cause)
	}
	return refusal.Unavailable(refusal.None, "the partition is not held here", cause)
}
