package journal

import (
	"bytes"
	"fmt"
)

// Damage is a line of the log that cannot be read.
type Damage struct {
	Frame  uint64
	WalSeq uint64 // that the line has by its place
	Line   []byte
	Cause  error
}

// Container is a State that can go on without a line that cannot be read: Contain
// makes what the line was about unusable, and nothing else. An error says that it
// cannot tell what that is; the partition then stands still. It is as pure as
// Apply: the same damage in the same log gives the same state.
type Quarantiner interface {
	Quarantine(d Damage) error
}

// Field looks for a text field of the envelope in what is left of the line. It
// gives what stands there if that stands there once, and is a plain name.
func (d Damage) Field(name string) (string, bool) {
	mark := []byte(`"` + name + `":"`)
	head, _, _ := bytes.Cut(d.Line, []byte(`"payload":`)) // the payload may have fields of the same name
	at := bytes.Index(head, mark)
	if at < 0 || bytes.Count(head, mark) != 1 {
		return "", false
	}
	value, _, closed := bytes.Cut(head[at+len(mark):], []byte{'"'})
	if !closed || len(value) == 0 {
		return "", false
	}
	for _, c := range value {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return "", false
		}
	}
	return string(value), true
}

// contain goes on behind a line that cannot be read, if the plane can.
func (c *core[S]) quarantine(d Damage) error {
	cause := fmt.Errorf("frame %d, wal_seq %d cannot be read: %w", d.Frame, d.WalSeq, d.Cause)
	plane, can := any(c.state).(Quarantiner)
	if !can {
		return cause
	}
	if err := plane.Quarantine(d); err != nil {
		return fmt.Errorf("%w, and what it is about cannot be told: %w", cause, err)
	}
	c.applied = d.WalSeq
	c.damaged(d)
	return nil
}
