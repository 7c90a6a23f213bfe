package state

import (
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/plane"
)

var _ journal.Erasable = (*State)(nil)

// DeletedBefore implements journal.Erasable. It returns the agents that were deleted before a time.
func (s *State) DeletedBefore(before time.Time) (all []snapshot.Owner) {
	for k, a := range s.deleted() {
		if a.Record.GetUpdatedAt().AsTime().Before(before) {
			all = append(all, snapshot.Owner(k))
		}
	}
	return all
}

// Erase implements journal.Erasable: it removes the deleted agents for which is returns true. What the records of
// other agents say of them stays, such as the delegation of a parent.
func (s *State) Erase(is func(namespace, id string) bool, touch func(snapshot.Owner)) {
	for k, a := range s.deleted() {
		if !is(k.Namespace, k.ID) {
			continue
		}
		touch(snapshot.Owner(k))
		s.evictDeleted(a) // which forgets the requests that found its turns
		s.removeReady(a)
		s.IDs.Delete(k)
		s.agents.Delete(k)
		last := true // of its namespace
		s.IDs.AscendGreaterOrEqual(plane.Key{Namespace: k.Namespace}, func(other plane.Key) bool {
			last = other.Namespace != k.Namespace
			return false
		})
		if last {
			delete(s.Ready, k.Namespace)
		}
	}
}
