package model

import (
	"slices"
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/journal/pages"
)

var _ journal.Erasable = (*State)(nil)

// DeletedBefore implements journal.Erasable. Agents of which a task has not ended, or has not left its queue, are left for later.
func (s *State) DeletedBefore(before time.Time) (all []pages.Owner) {
	for o := range s.Deleted {
		if s.DeletedAt[o].Before(before) && s.Agents[o].idle() {
			all = append(all, pages.Owner(o))
		}
	}
	return all
}

// idle reports whether all tasks have ended and left their queues.
func (of *ownerTasks) idle() bool {
	return of == nil || len(of.Active) == 0 && !slices.ContainsFunc(of.groups, func(g *group) bool {
		return slices.ContainsFunc(g.records, func(r *Record) bool { return r.queued })
	})
}

// Erase implements journal.Erasable.
func (s *State) Erase(is func(namespace, id string) bool, touch func(pages.Owner)) {
	for o := range s.Deleted {
		of := s.Agents[o]
		if !is(o.Namespace, o.ID) || !of.idle() {
			continue
		}
		touch(ownerOf(o, 0))
		if of != nil {
			for first := 0; first < of.size(); first += pageTasks {
				touch(ownerOf(o, first))
			}
			for _, g := range of.groups {
				if g.packed != nil {
					s.packed.Remove(idHashes(storedTasks(g.all())))
				}
				for _, r := range g.records {
					delete(s.Tasks, r.Task.GetTaskId())
				}
			}
		}
		delete(s.Agents, o)
		delete(s.Deleted, o)
		delete(s.DeletedAt, o)
		delete(s.Ended, o)
		s.last = s.newest()
	}
}

// newest returns the ordinal of the newest task, 0 if there is none.
func (s *State) newest() (ordinal int64) {
	for _, of := range s.Agents {
		if n := len(of.groups); n > 0 {
			all := of.groups[n-1].all()
			ordinal = max(ordinal, all[len(all)-1].Ordinal)
		}
	}
	return ordinal
}
