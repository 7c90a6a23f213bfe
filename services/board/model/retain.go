package model

import (
	"slices"
	"sort"
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/plane"
)

var _ journal.Retaining = (*State)(nil)

// Needs implements journal.Retaining: the lines of a WAL are needed until the board has ended and its end is older
// than before. Then all of them may be removed, because a line can be verified only with the lines before it. Events
// that are not in a WAL are not needed, since nothing reads them back.
func (s *State) Needs(ev *journal.Event, before time.Time) bool {
	if !InWAL(ev) {
		return false
	}
	se := s.Sessions[plane.KeyOf(ev.Namespace, ev.SessionID)]
	if se == nil {
		return false
	}
	created := sort.Search(len(se.WALs), func(i int) bool { return se.WALs[i].first > ev.WalSeq })
	for _, b := range slices.Backward(se.WALs[:created]) {
		if b.ID == ev.TaskID { // a later board with the id has the lines from its creation on
			return !Ended(b.Status) || !b.UpdatedAt.Before(before)
		}
	}
	return false
}
