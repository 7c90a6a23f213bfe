package journal

import (
	"fmt"

	"quartet/pkg/journal/framelog"
)

// Damage is a line of the log that cannot be read.
type Damage struct {
	Frame  uint64
	WalSeq uint64 // according to the line's position
	Line   []byte
	Cause  error
}

// Quarantiner is a State that can continue without a damaged line. Quarantine makes the records that the line
// was about unusable, and no others. An error means that it cannot determine which these are; the partition
// then cannot be loaded. Like Apply it is pure: the same damage in the same log gives the same state.
type Quarantiner interface {
	Quarantine(d Damage) error
}

// Field searches the readable part of the envelope for a text field, as framelog.LineField does.
func (d Damage) Field(name string) (string, bool) {
	return framelog.LineField(d.Line, name)
}

// quarantine continues behind a damaged line if the state is a Quarantiner that accepts it, and otherwise returns why
// it cannot.
func (c *core[S]) quarantine(d Damage) error {
	cause := fmt.Errorf("frame %d, wal_seq %d cannot be read: %w", d.Frame, d.WalSeq, d.Cause)
	plane, can := any(c.state).(Quarantiner)
	if !can {
		return cause
	}
	if err := plane.Quarantine(d); err != nil {
		return fmt.Errorf("%w, and what it is about cannot be determined: %w", cause, err)
	}
	c.applied = d.WalSeq
	c.track.Damage()
	c.damaged(d)
	return nil
}
