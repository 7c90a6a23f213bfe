package waiting

import (
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

var _ journal.Erasable = (*State)(nil)

// DeletedBefore implements journal.Erasable: it returns the agents that were deleted before a time.
func (s *State) DeletedBefore(before time.Time) (all []snapshot.Owner) {
	for k, a := range s.deletedAgents() {
		if a.deletedAt.Before(before) {
			all = append(all, snapshot.Owner(k))
		}
	}
	return all
}

// Erase implements journal.Erasable: it removes the deleted agents that is selects, with their triggers' secrets.
func (s *State) Erase(is func(namespace, id string) bool, touch func(snapshot.Owner)) {
	for k, a := range s.deletedAgents() {
		if !is(k.Namespace, k.ID) {
			continue
		}
		touch(snapshot.Owner(k))
		for _, w := range a.activeWaits(func(*waitingv1.Wait) bool { return true }) {
			s.countOpen(w, -1)
		}
		for _, hash := range a.secrets {
			delete(s.tokens, hash)
		}
		s.agents.Delete(k)
	}
}
