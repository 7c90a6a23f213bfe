package work

import (
	"context"
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/plane"
)

var (
	_ journal.Erasable  = (*State)(nil)
	_ journal.Retaining = (*State)(nil)
)

// DeletedBefore implements journal.Erasable. It goes by the agent's last change, which is the blocking of its items.
func (s *State) DeletedBefore(before time.Time) (all []snapshot.Owner) {
	for _, k := range s.deleted() {
		if s.ByOwner.Peek(k).changed.Before(before) {
			all = append(all, snapshot.Owner(k))
		}
	}
	return all
}

// deleted returns the deleted agents. It reads no evicted one.
func (s *State) deleted() (all []plane.Key) {
	for k, a := range s.ByOwner.Resident() {
		if a.deleted {
			all = append(all, k)
		}
	}
	for k, left := range s.ByOwner.Summaries() {
		if left.Plane.deleted {
			all = append(all, k)
		}
	}
	return all
}

// Erase implements journal.Erasable: it removes the deleted agents that is selects, with their items.
func (s *State) Erase(is func(namespace, id string) bool, touch func(snapshot.Owner)) {
	for _, k := range s.deleted() {
		if !is(k.Namespace, k.ID) {
			continue
		}
		touch(headOf(k))
		s.Pages(k, s.Len(k), touch)
		s.store.Erase(k)
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
