package state

import (
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/journal/pages"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/ref"
)

var _ journal.Erasable = (*State)(nil)

// DeletedBefore implements journal.Erasable.
func (s *State) DeletedBefore(before time.Time) (all []pages.Owner) {
	for k, a := range s.Agents {
		if a.Record.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETED && a.Record.GetUpdatedAt().AsTime().Before(before) {
			all = append(all, pages.Owner(k))
		}
	}
	return all
}

// Erase implements journal.Erasable. What other agents know of the erased one, such as the delegation of its parent, is theirs.
func (s *State) Erase(is func(namespace, id string) bool, touch func(pages.Owner)) {
	for k, a := range s.Agents {
		if a.Record.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_DELETED || !is(k.Namespace, k.ID) {
			continue
		}
		touch(pages.Owner(k))
		s.evictDeleted(a) // which forgets the requests that found its turns
		s.removeReady(a)
		s.IDs.Delete(k)
		delete(s.Agents, k)
		last := true // of its namespace
		s.IDs.AscendGreaterOrEqual(ref.Agent{Namespace: k.Namespace}, func(other ref.Agent) bool {
			last = other.Namespace != k.Namespace
			return false
		})
		if last {
			delete(s.Ready, k.Namespace)
		}
	}
}
