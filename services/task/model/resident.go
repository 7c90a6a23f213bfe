package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/snapshot"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/resident"
)

var _ snapshot.Resident = (*State)(nil)

// evictedGroups is how many groups an agent may have to be evicted. To read one task of an evicted agent, all its
// groups are read, although not the contents of packed ones; for so many groups that takes 50 µs.
const evictedGroups = 256

// summary is what is in memory of an evicted agent, beside the places of its tasks in State.packed.
type summary struct {
	number uint32 // in State.numbers
	tasks  uint32
	newest int64 // the ordinal of the newest task
}

// UseFile implements snapshot.Resident.
func (s *State) UseFile(f *resident.File) {
	s.agents.Use(f)
	s.packed, s.file = resident.NewIndex(f), f
}

// Evict implements snapshot.Resident.
func (s *State) Evict(most int, unused bool) (n int, more bool, err error) {
	return s.agents.Evict(most, unused)
}

// Counts implements snapshot.Resident.
func (s *State) Counts() resident.Counts { return s.agents.Counts() }

// size returns the number of tasks of an agent. It reads no evicted one.
func (s *State) size(o Owner) int {
	if left, evicted := s.agents.Summary(o); evicted {
		return int(left.tasks)
	}
	if of := s.agents.Peek(o); of != nil {
		return of.size()
	}
	return 0
}

// evictedPage returns a page with all tasks of an agent, and their summary. A packed group has its number among all
// groups in it, a reference to its content in the file instead of the content, and no hashes, since these stay in
// State.packed. evictedPage returns false for an agent that stays resident: one that is not idle, one with more than
// evictedGroups groups, and one of which a page was not added yet, so that tasks are missing before others.
func (s *State) evictedPage(_ Owner, of *ownerTasks) (proto.Message, summary, bool) {
	p := &taskv1.AgentTasksPage{}
	can := len(of.groups) <= evictedGroups && of.idle()
	for n := range of.groups {
		g := &of.groups[n]
		switch {
		case !g.packed.IsZero():
			if g.packed, _ = g.packed.Store(s.file); can {
				p.Packed = append(p.Packed, g.page(n, g.packed.Ref(), nil))
			}
		case len(g.records) == 0 || len(g.records) < groupTasks && n < len(of.groups)-1 ||
			slices.Contains(g.records, nil):
			can = false
		case can:
			p.Tasks = append(p.Tasks, storedTasks(g.records)...)
		}
	}
	if !can {
		return nil, summary{}, false
	}
	return p, summary{number: of.number, tasks: uint32(of.size()), newest: of.newest()}, true
}

// evictedAgent is the inverse of evictedPage: it returns the tasks of an evicted agent. It does not change the state.
func (s *State) evictedAgent(o Owner, page proto.Message) (*ownerTasks, error) {
	p, is := page.(*taskv1.AgentTasksPage)
	left, evicted := s.agents.Summary(o)
	if !is || !evicted {
		return nil, fmt.Errorf("task: agent %s/%s is not evicted to a %T", o.Namespace, o.ID, page)
	}
	of := &ownerTasks{agent: o, number: left.number}
	tasks, packed := p.GetTasks(), p.GetPacked()
	for len(tasks)+len(packed) > 0 {
		n := len(of.groups)
		if len(packed) > 0 && int(packed[0].GetGroup()) == n {
			content, err := resident.BlobOf(s.file, packed[0].GetContent())
			if err != nil {
				return nil, fmt.Errorf("task: agent %s/%s: group %d: %w", o.Namespace, o.ID, n, err)
			}
			of.groups = append(of.groups, groupOf(packed[0], content))
			packed = packed[1:]
			continue
		}
		if len(tasks) == 0 {
			return nil, fmt.Errorf("task: agent %s/%s: tasks before group %d are missing", o.Namespace, o.ID,
				packed[0].GetGroup())
		}
		g := group{}
		for i, stored := range tasks[:min(groupTasks, len(tasks))] {
			g.records = append(g.records, recordOf(o, n*groupTasks+i, stored))
		}
		of.groups = append(of.groups, g)
		tasks = tasks[len(g.records):]
	}
	return of, nil
}

// evicted is called when an agent is evicted: it moves the tasks that are in no packed group from State.Tasks to
// State.packed.
func (s *State) evicted(_ Owner, of *ownerTasks) {
	for n := range of.groups {
		records := of.groups[n].records
		s.addToPacked(s.idHashes(storedTasks(records)), packedAt{of.number, uint32(n)})
		for _, r := range records {
			delete(s.Tasks, r.Task.GetTaskId())
		}
	}
}

// loaded is called when an evicted agent becomes resident again. It is the reverse of the method evicted: it moves
// the tasks that are in no packed group from State.packed back to State.Tasks.
func (s *State) loaded(_ Owner, of *ownerTasks) {
	for n := range of.groups {
		records := of.groups[n].records
		s.removeFromPacked(s.idHashes(storedTasks(records)), packedAt{of.number, uint32(n)})
		for _, r := range records {
			s.Tasks[r.Task.GetTaskId()] = r
		}
	}
}

// Comparable returns what tests compare (see pagestest.Same). It does not depend on which agents are evicted, where
// the bytes of groups are, and which numbers agents have. It differs if a task is missing in State.Tasks or
// State.packed, or is in the wrong one.
func (s *State) Comparable() any {
	type taskAt struct {
		agent Owner
		group uint32
	}
	type fields State // which compares all others
	others := fields(*s)
	others.Tasks = maps.Clone(s.Tasks)
	others.packed, others.agents, others.numbers, others.file = nil, nil, resident.Numbers[Owner]{}, nil
	all := struct {
		fields
		packed map[uint64][]taskAt
		agents map[Owner]ownerTasks
	}{others, map[uint64][]taskAt{}, map[Owner]ownerTasks{}}
	for h, n := range s.packed.All() {
		all.packed[h] = append(all.packed[h], taskAt{s.numbers.Key(uint32(n >> 32)), uint32(n)})
	}
	for o := range s.agents.Keys() {
		of := *s.agents.Peek(o)
		if _, evicted := s.agents.Summary(o); evicted {
			for n := range of.groups {
				for _, r := range of.groups[n].records {
					id := r.Task.GetTaskId()
					h := s.hash("", id)
					if i := slices.Index(all.packed[h], taskAt{o, uint32(n)}); s.Tasks[id] == nil && i >= 0 {
						all.Tasks[id] = r
						if all.packed[h] = slices.Delete(all.packed[h], i, i+1); len(all.packed[h]) == 0 {
							delete(all.packed, h)
						}
					}
				}
			}
		}
		of.number = 0
		all.agents[o] = of
	}
	for _, at := range all.packed {
		slices.SortFunc(at, func(x, y taskAt) int {
			return cmp.Or(cmp.Compare(x.agent.Namespace, y.agent.Namespace), cmp.Compare(x.agent.ID, y.agent.ID),
				cmp.Compare(x.group, y.group))
		})
	}
	return all
}
