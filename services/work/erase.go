package work

import (
	"context"
	"iter"
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/plane"
	"quartet/pkg/plane/groups"
)

var (
	_ journal.Erasable  = (*State)(nil)
	_ journal.Retaining = (*State)(nil)
)

// DeletedBefore implements journal.Erasable. It goes by the agent's last change, which is the blocking of its items.
func (s *State) DeletedBefore(before time.Time) (all []snapshot.Owner) {
	for k, a := range s.deleted() {
		if a.changed.Before(before) {
			all = append(all, snapshot.Owner(k))
		}
	}
	return all
}

// deleted returns the deleted agents, in no order.
func (s *State) deleted() iter.Seq2[plane.Key, *agentWork] {
	return s.ByOwner.Where(func(a *agentWork) bool { return a.deleted },
		func(left groups.Summary[summary]) bool { return left.Plane.deleted })
}

// Erase implements journal.Erasable: it removes the deleted agents that is selects, with their items.
func (s *State) Erase(is func(namespace, id string) bool, touch func(snapshot.Owner)) {
	for k := range s.deleted() {
		if is(k.Namespace, k.ID) {
			touch(headOf(k))
			s.Pages(k, s.Len(k), touch)
			s.store.Erase(k)
		}
	}
}

// eraseHome removes the home of a deleted agent.
func (s *Service) eraseHome(_ context.Context, namespace, agentID string) error {
	return s.homes.Remove(namespace, agentID)
}

// Needs implements journal.Retaining. Who counts open items from the beginning of the journal needs the creation of
// each open item, and no event of a completed one. A completion is kept until its creation is old too, which may be
// later if the clock was set back: a creation without its completion would count as an open item.
func (s *State) Needs(ev *journal.Event, before time.Time) bool {
	row, err := eventRows.Of(ev)
	return err == nil && row.needed(s, ev, before)
}
