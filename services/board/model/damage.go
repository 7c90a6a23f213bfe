package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"quartet/pkg/journal"
	"quartet/pkg/plane"
)

// errUnknownBoard is the error of a damaged record that does not show which board it is about.
var errUnknownBoard = errors.New("namespace, session_id and task_id cannot be read")

// Quarantine makes the board that a damaged record was about unusable, and no other one
// (SPEC B2, S2-059). The payload is lost, so the state of that board is unknown; the
// fields that name the board can nearly always still be read, and without them the error
// is errUnknownBoard. If no board with that id is active, Quarantine adds an unusable one, unless
// a board with that id has ended and the record is no task_created: then nothing changes.
func (s *State) Quarantine(d journal.Damage) error {
	namespace, known := d.Field("namespace")
	session, named := d.Field("session_id")
	id, numbered := d.Field("task_id")
	if !known || !named || !numbered {
		return errUnknownBoard
	}
	k := plane.KeyOf(namespace, session)
	b := s.ActiveBoard(k, id)
	if b == nil { // the record created the board, or followed its end
		if kind, _ := d.Field("event_type"); kind != "task_created" && s.hadBoard(k, id) {
			return nil
		}
		b = NewBoard(BoardKey{namespace, session, fmt.Sprintf("damaged-%d", d.WalSeq)}, id)
		s.addBoard(b)
	}
	b.AddLine(&journal.Event{WalSeq: d.WalSeq, CreatedAt: b.UpdatedAt})
	if !b.IsDamaged() {
		b.Damaged = newDamage(fmt.Sprintf("line %d, which is wal_seq %d in frame %d of the journal", b.Lines, d.WalSeq,
			d.Frame), d.Cause)
	}
	s.withdraw(b)
	return nil
}

// hadBoard reports whether one of the ended boards of session k has the board id id.
func (s *State) hadBoard(k Key, id string) bool {
	se := s.Sessions[k]
	return se != nil && slices.ContainsFunc(se.Ended, func(b *Board) bool { return b.ID == id })
}

// withdraw takes a board that cannot be used out of the indexes: no worker claims its steps,
// and its runs get no leases.
func (s *State) withdraw(b *Board) {
	for _, d := range b.Dispatches {
		s.unlist(d)
	}
	s.refreshScopes(b)
	delete(s.WithRuns, b)
}

// damage is why a WAL cannot be replayed. It has texts only, which a snapshot keeps.
type damage struct {
	place string
	cause string // may be empty
}

// newDamage returns the damage of a line at a place.
func newDamage(place string, cause error) *damage {
	d := &damage{place: place}
	if cause != nil {
		d.cause = strings.ToValidUTF8(cause.Error(), "\uFFFD")
	}
	return d
}

// Error implements error.
func (d *damage) Error() string {
	if d.cause == "" {
		return d.place
	}
	return d.place + ": " + d.cause
}

// Unwrap returns the cause, nil if it is not known.
func (d *damage) Unwrap() error {
	if d.cause == "" {
		return nil
	}
	return errors.New(d.cause)
}
