package model

import (
	"errors"
	"fmt"
	"slices"

	"quartet/pkg/journal"
)

var errWhose = errors.New("namespace, session_id and task_id are not legible")

// Contain makes the board that a damaged record was about unusable, and no other
// (SPEC B2, S2-059). What the record said is lost, so nobody can know how that
// board stands; what it is called nearly always survives.
func (s *State) Contain(d journal.Damage) error {
	namespace, known := d.Field("namespace")
	session, named := d.Field("session_id")
	id, numbered := d.Field("task_id")
	if !known || !named || !numbered {
		return errWhose
	}
	k := Key{namespace, session}
	b := s.ActiveBoard(k, id)
	if b == nil { // it was the line that made it, or one behind its end
		if kind, _ := d.Field("event_type"); kind != "task_created" && s.hadBoard(k, id) {
			return nil
		}
		b = NewBoard(BoardKey{namespace, session, fmt.Sprintf("damaged-%d", d.WalSeq)}, id)
		s.addBoard(b)
	}
	b.AddLine(&journal.Event{WalSeq: d.WalSeq, CreatedAt: b.UpdatedAt})
	if !b.IsDamaged() {
		b.Damaged = fmt.Errorf("line %d, which is wal_seq %d in frame %d of the journal: %w", b.Lines, d.WalSeq, d.Frame, d.Cause)
	}
	s.withdraw(b)
	return nil
}

// hadBoard reports whether a board of that name has ended.
func (s *State) hadBoard(k Key, id string) bool {
	se := s.Sessions[k]
	return se != nil && slices.ContainsFunc(se.Ended, func(b *Board) bool { return b.ID == id })
}

// withdraw keeps workers and the timer of leases away from a board that cannot be used.
func (s *State) withdraw(b *Board) {
	for _, d := range b.Dispatches {
		d.unlist()
	}
	delete(s.WithRuns, b)
}
