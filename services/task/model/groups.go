package model

import (
	"fmt"
	"iter"
	"slices"

	"quartet/pkg/packed"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/resident"
)

const (
	// groupTasks is how many tasks of an agent, in the order of their creation, are a group. It divides pageTasks.
	groupTasks = 16
	// pageGroups is how many groups a page has.
	pageGroups = pageTasks / groupTasks
)

// group is groupTasks tasks of an agent that were created one after the other; the last group of an agent may have
// fewer. Once a group is full, all its tasks have ended, and none is left in a queue, it is packed: a task that has
// ended never changes.
type group struct {
	records []*Record     // nil if the group is packed
	packed  resident.Blob // an AgentTasksPage with the tasks; zero if the group is not packed
	// first and last are the ordinals of the first and the last task of a packed group, and items the hashes of their
	// work items.
	first, last int64
	items       [groupTasks]uint32
}

// packedAt says which group of an agent has a task.
type packedAt struct {
	agent uint32 // in State.numbers
	group uint32
}

// number returns at as State.packed has it: the agent in the upper 32 bits, the group in the lower ones.
func (at packedAt) number() uint64 { return uint64(at.agent)<<32 | uint64(at.group) }

// itemHash returns what a packed group has in memory of the work item of a task: a hash of the id; 0 for no item.
func itemHash(itemID string) uint32 {
	if itemID == "" {
		return 0
	}
	return uint32(packed.Hash("", itemID)) // half of it is enough: the work item of a task that is found is compared
}

// Task returns the record of a task, nil if there is none. For a task in a packed group or of an evicted agent it is
// a copy.
func (s *State) Task(taskID string) *Record {
	if r := s.Tasks[taskID]; r != nil {
		return r
	}
	for n := range s.packed.Find(s.hash("", taskID)) { // others may have the same hash
		of := s.agents.Get(s.numbers.Key(uint32(n >> 32)))
		for _, r := range of.records(int(uint32(n))) {
			if r.Task.GetTaskId() == taskID {
				return r
			}
		}
	}
	return nil
}

// records returns the tasks of a group, oldest first.
func (of *ownerTasks) records(n int) []*Record {
	g := &of.groups[n]
	if g.packed.IsZero() {
		return g.records
	}
	tasks := g.stored()
	records := make([]*Record, len(tasks))
	for i, stored := range tasks {
		records[i] = recordOf(of.agent, n*groupTasks+i, stored)
	}
	return records
}

// stored returns the tasks of a packed group.
func (g *group) stored() []*taskv1.StoredTask {
	var page taskv1.AgentTasksPage
	packed.Read(g.packed.Bytes(), &page)
	return page.GetTasks()
}

// size returns the number of tasks.
func (of *ownerTasks) size() int {
	n := len(of.groups)
	switch {
	case n == 0:
		return 0
	case !of.groups[n-1].packed.IsZero():
		return n * groupTasks
	}
	return (n-1)*groupTasks + len(of.groups[n-1].records)
}

// groupAt returns group n. If it or groups before it do not exist, groupAt adds them, empty: their pages may come
// later.
func (of *ownerTasks) groupAt(n int) *group {
	for len(of.groups) <= n {
		of.groups = append(of.groups, group{})
	}
	return &of.groups[n]
}

// Agents returns the agents that have tasks, in no order.
func (s *State) Agents() iter.Seq[Owner] { return s.agents.Keys() }

// TasksOf returns the tasks of an agent, oldest first.
func (s *State) TasksOf(o Owner) iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		of := s.agents.Get(o)
		if of == nil {
			return
		}
		for n := range of.groups {
			for _, r := range of.records(n) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// Active returns the tasks of an agent that have not ended, in no order. An evicted agent has no such tasks, so it is
// not loaded from the file.
func (s *State) Active(o Owner) iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		if _, evicted := s.agents.Summary(o); evicted {
			return
		}
		of := s.agents.Get(o)
		if of == nil {
			return
		}
		for id := range of.active {
			if !yield(s.Tasks[id]) {
				return
			}
		}
	}
}

// before returns the tasks of an agent with smaller ordinals than ordinal, newest first. If itemID is not empty, it
// returns only tasks of that work item, and reads only the packed groups that may have some.
func (of *ownerTasks) before(ordinal int64, itemID string) iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		for n, g := range slices.Backward(of.groups) {
			if !g.packed.IsZero() && (g.first >= ordinal || itemID != "" &&
				!slices.Contains(g.items[:], itemHash(itemID))) {
				continue
			}
			for _, r := range slices.Backward(of.records(n)) {
				if r.Ordinal < ordinal && (itemID == "" || r.Task.GetWorkItemId() == itemID) && !yield(r) {
					return
				}
			}
		}
	}
}

// settle packs the group of a task if it can be packed.
func (s *State) settle(r *Record) {
	of, n := s.agents.Get(r.owner()), r.index/groupTasks
	g := &of.groups[n]
	if len(g.records) < groupTasks || slices.ContainsFunc(g.records, func(r *Record) bool {
		return r == nil || r.queued || !Terminal(r.Task.GetState())
	}) {
		return
	}
	page := storedTasks(g.records)
	b, err := packed.Encode(&taskv1.AgentTasksPage{Tasks: page})
	if err != nil {
		return
	}
	s.addToPacked(s.idHashes(page), packedAt{of.number, uint32(n)})
	g.first, g.last = g.records[0].Ordinal, g.records[groupTasks-1].Ordinal
	for i, r := range g.records {
		g.items[i] = itemHash(r.Task.GetWorkItemId())
		delete(s.Tasks, r.Task.GetTaskId())
	}
	g.records, g.packed = nil, resident.NewBlob(s.file, b)
}

// addToPacked adds tasks of a group to State.packed.
func (s *State) addToPacked(hashes []uint64, at packedAt) {
	for _, h := range hashes {
		s.packed.Add(h, at.number())
	}
}

// removeFromPacked removes tasks of a group from State.packed.
func (s *State) removeFromPacked(hashes []uint64, at packedAt) {
	for _, h := range hashes {
		s.packed.Remove(h, at.number())
	}
}

// idHashes returns, for each of tasks, the key that the task has or would have in State.packed.
func (s *State) idHashes(tasks []*taskv1.StoredTask) []uint64 {
	hashes := make([]uint64, len(tasks))
	for i, t := range tasks {
		hashes[i] = s.hash("", t.GetTask().GetTaskId())
	}
	return hashes
}

// page returns the form in which a page has a packed group. The caller gives its number, its content or a reference
// to that, and the hashes of the ids of its tasks.
func (g *group) page(n int, content []byte, hashes []uint64) *taskv1.PackedTasks {
	return &taskv1.PackedTasks{
		Group: uint32(n), Content: content, IdHashes: hashes, ItemHashes: g.items[:], FirstOrdinal: g.first,
		LastOrdinal: g.last,
	}
}

// groupOf returns the packed group that a page has. The caller gives its content.
func groupOf(p *taskv1.PackedTasks, content resident.Blob) group {
	g := group{packed: content, first: p.GetFirstOrdinal(), last: p.GetLastOrdinal()}
	copy(g.items[:], p.GetItemHashes())
	return g
}

// addPacked adds the packed group of a page to the tasks of its agent. It does not decode the group's tasks.
func (s *State) addPacked(agent Owner, block int, p *taskv1.PackedTasks) error {
	if p.GetGroup() >= pageGroups || len(p.GetIdHashes()) != groupTasks || len(p.GetItemHashes()) != groupTasks ||
		len(p.GetContent()) == 0 ||
		p.GetFirstOrdinal() <= 0 || p.GetLastOrdinal() < p.GetFirstOrdinal()+groupTasks-1 {
		return fmt.Errorf("group %d has %d bytes with %d tasks of %d items, from ordinal %d to %d",
			p.GetGroup(), len(p.GetContent()), len(p.GetIdHashes()), len(p.GetItemHashes()), p.GetFirstOrdinal(),
			p.GetLastOrdinal())
	}
	of, n := s.tasksOf(agent), block*pageGroups+int(p.GetGroup())
	g := of.groupAt(n)
	if !g.packed.IsZero() || len(g.records) > 0 {
		return fmt.Errorf("group %d is there twice", p.GetGroup())
	}
	s.addToPacked(p.GetIdHashes(), packedAt{of.number, uint32(n)})
	*g = groupOf(p, resident.NewBlob(s.file, p.GetContent()))
	s.last = max(s.last, g.last)
	return nil
}
