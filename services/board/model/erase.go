package model

import (
	"slices"
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
)

var _ journal.Erasable = (*State)(nil)

// DeletedBefore implements journal.Erasable: it returns the sessions whose orchestrator was deleted before a time and
// that have no active board.
func (s *State) DeletedBefore(before time.Time) (all []snapshot.Owner) {
	for k := range s.Deleted {
		if se := s.Sessions[k]; s.DeletedAt[k].Before(before) && (se == nil || len(se.active) == 0) {
			all = append(all, snapshot.Owner(k))
		}
	}
	return all
}

// Erase implements journal.Erasable: it removes the deleted sessions that is selects, with their boards and runs. It
// leaves a session that has an active board.
func (s *State) Erase(is func(namespace, id string) bool, touch func(snapshot.Owner)) {
	for k := range s.Deleted {
		se := s.Sessions[k]
		if !is(k.Namespace, k.ID) || se != nil && len(se.active) > 0 {
			continue
		}
		touch(sessionOwner(k))
		if se != nil {
			for _, b := range se.WALs {
				touch(b.Key.owner())
			}
			s.freeContents(se)
			for from := 0; from < len(s.ended); from += pageRuns {
				touch(endedOwner((s.dropped + from) / pageRuns))
			}
			s.ended = slices.DeleteFunc(slices.Clone(s.ended), func(run Key) bool {
				b := s.Runs[run].Board
				gone := b.Key.Namespace == k.Namespace && b.Key.Session == k.ID
				if gone {
					delete(s.Runs, run)
				}
				return gone
			})
			for i, run := range s.ended {
				s.Runs[run].place = s.dropped + i
			}
		}
		delete(s.Sessions, k)
		delete(s.Deleted, k)
		delete(s.DeletedAt, k)
	}
}
