package journal

import (
	"errors"
)

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
