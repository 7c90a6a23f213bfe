package model

import (
	"slices"
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/plane/groups"
)

var _ journal.Erasable = (*State)(nil)

// DeletedBefore implements journal.Erasable: it returns the agents that were deleted before a time and all of whose
// tasks have ended and left their queues.
func (s *State) DeletedBefore(before time.Time) (all []snapshot.Owner) {
	for o := range s.Deleted {
		if s.DeletedAt[o].Before(before) && s.idle(o) {
			all = append(all, snapshot.Owner(o))
		}
	}
	return all
}

// idle reports whether all tasks of an agent have ended and left their queues. It reads no evicted agent.
func (s *State) idle(o Owner) bool {
	_, evicted := s.ByOwner.Summary(o)
	return evicted || s.ByOwner.Peek(o).idle()
}

// idle reports whether all tasks have ended and left their queues, also if there are none. Those of a packed group
// have. A nil record is that of a task whose page was not added yet; it does not count.
func (of *ownerTasks) idle() bool {
	if of == nil {
		return true
	}
	return len(of.active) == 0 && !slices.ContainsFunc(of.tasks.Groups, func(g groups.Group[Record, facts]) bool {
		return slices.ContainsFunc(g.Items, func(r *Record) bool { return r != nil && r.queued })
	})
}

// Erase implements journal.Erasable: it removes the deleted agents that is selects, with their tasks. It leaves
// agents that are not idle.
func (s *State) Erase(is func(namespace, id string) bool, touch func(snapshot.Owner)) {
	for o := range s.Deleted {
		if !is(o.Namespace, o.ID) || !s.idle(o) {
			continue
		}
		touch(s.PageOf(o, 0))
		s.Pages(o, s.Len(o), touch)
		s.store.Erase(o)
		delete(s.Deleted, o)
		delete(s.DeletedAt, o)
		delete(s.Ended, o)
		s.last = s.newest()
	}
}

// newest returns the ordinal of the newest task, 0 if there is none. It reads no evicted agent.
func (s *State) newest() (ordinal int64) {
	for _, of := range s.ByOwner.Resident() {
		ordinal = max(ordinal, of.newest())
	}
	for _, left := range s.ByOwner.Summaries() {
		ordinal = max(ordinal, left.Plane.newest)
	}
	return ordinal
}

// newest returns the ordinal of the newest task of an agent.
func (of *ownerTasks) newest() int64 {
	g := &of.tasks.Groups[len(of.tasks.Groups)-1]
	if !g.Packed.IsZero() {
		return g.Facts.last
	}
	return g.Items[len(g.Items)-1].Ordinal
}
