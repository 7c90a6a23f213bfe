package model

import (
	"slices"
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
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
	_, evicted := s.agents.Summary(o)
	return evicted || s.agents.Peek(o).idle()
}

// idle reports whether all tasks have ended and left their queues, also if there are none. Those of a packed group
// have. A nil record is that of a task whose page was not added yet; it does not count.
func (of *ownerTasks) idle() bool {
	return of == nil || len(of.active) == 0 && !slices.ContainsFunc(of.groups, func(g group) bool {
		return slices.ContainsFunc(g.records, func(r *Record) bool { return r != nil && r.queued })
	})
}

// Erase implements journal.Erasable: it removes the deleted agents that is selects, with their tasks. It leaves
// agents that are not idle.
func (s *State) Erase(is func(namespace, id string) bool, touch func(snapshot.Owner)) {
	for o := range s.Deleted {
		if !is(o.Namespace, o.ID) || !s.idle(o) {
			continue
		}
		touch(ownerOf(o, 0))
		if of := s.agents.Edit(o); of != nil {
			ownersOf(o, of.size(), touch)
			s.eraseTasks(of)
		}
		delete(s.Deleted, o)
		delete(s.DeletedAt, o)
		delete(s.Ended, o)
		s.last = s.newest()
	}
}

// eraseTasks removes the tasks of an agent.
func (s *State) eraseTasks(of *ownerTasks) {
	for n := range of.groups {
		g := &of.groups[n]
		if !g.packed.IsZero() {
			s.removeFromPacked(s.idHashes(g.stored()), packedAt{of.number, uint32(n)})
			g.packed.Free()
		}
		for _, r := range g.records {
			delete(s.Tasks, r.Task.GetTaskId())
		}
	}
	s.agents.Delete(of.agent)
	s.numbers.Give(of.number)
}

// newest returns the ordinal of the newest task, 0 if there is none. It reads no evicted agent.
func (s *State) newest() (ordinal int64) {
	for _, of := range s.agents.Resident() {
		ordinal = max(ordinal, of.newest())
	}
	for _, left := range s.agents.Summaries() {
		ordinal = max(ordinal, left.newest)
	}
	return ordinal
}

// newest returns the ordinal of the newest task of an agent.
func (of *ownerTasks) newest() int64 {
	g := &of.groups[len(of.groups)-1]
	if !g.packed.IsZero() {
		return g.last
	}
	return g.records[len(g.records)-1].Ordinal
}
