package model

import (
	"fmt"
	"iter"
	"slices"

	"quartet/pkg/packed"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	// groupTasks is how many tasks of an agent, in the order of their creation, are a group. It divides pageTasks.
	groupTasks = 16
	// pageGroups is how many groups a page has.
	pageGroups = pageTasks / groupTasks
)

// group is a number of tasks of an agent that were created one after the other. Once all have ended, and none is left in a queue, the group is
// packed: a task that has ended never changes.
type group struct {
	agent   Owner
	number  int
	records []*Record // nil if the group is packed
	packed  []byte    // an AgentTasksPage with the tasks; nil if the group is not packed
	// first and last are the ordinals of the first and the last task of a packed group, and items the hashes of their work items.
	first, last int64
	items       [groupTasks]uint32
}

// itemHash returns what a group knows of the work item of a task; 0 without one.
func itemHash(itemID string) uint32 {
	if itemID == "" {
		return 0
	}
	return uint32(packed.Hash("", itemID)) // half of it is enough: who finds a task looks at it
}

// Task returns a task, nil if there is none. That of a packed group is a copy.
func (s *State) Task(taskID string) *Record {
	if r := s.Tasks[taskID]; r != nil {
		return r
	}
	g := s.packed[packed.Hash("", taskID)]
	if g == nil {
		return nil
	}
	for _, r := range g.all() {
		if r.Task.GetTaskId() == taskID {
			return r
		}
	}
	return nil
}

// all returns the tasks of a group, oldest first.
func (g *group) all() []*Record {
	if g.packed == nil {
		return g.records
	}
	var page taskv1.AgentTasksPage
	packed.Read(g.packed, &page)
	records := make([]*Record, len(page.GetTasks()))
	for i, stored := range page.GetTasks() {
		records[i] = recordOf(g.agent, g.number*groupTasks+i, stored)
	}
	return records
}

// size returns the number of tasks.
func (of *ownerTasks) size() int {
	n := len(of.groups)
	switch {
	case n == 0:
		return 0
	case of.groups[n-1].packed != nil:
		return n * groupTasks
	}
	return (n-1)*groupTasks + len(of.groups[n-1].records)
}

// groupAt returns a group, with all those before it, which may be still to come.
func (of *ownerTasks) groupAt(agent Owner, n int) *group {
	for len(of.groups) <= n {
		of.groups = append(of.groups, &group{agent: agent, number: len(of.groups)})
	}
	return of.groups[n]
}

// All returns the tasks of an agent, oldest first.
func (of *ownerTasks) All() iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		for _, g := range of.groups {
			for _, r := range g.all() {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// before returns the tasks of an agent with ordinals before one, newest first. Of packed groups it reads only those that may have tasks of a work
// item; "" reads all of them.
func (of *ownerTasks) before(ordinal int64, itemID string) iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		for _, g := range slices.Backward(of.groups) {
			if g.packed != nil && (g.first >= ordinal || itemID != "" && !slices.Contains(g.items[:], itemHash(itemID))) {
				continue
			}
			for _, r := range slices.Backward(g.all()) {
				if r.Ordinal < ordinal && (itemID == "" || r.Task.GetWorkItemId() == itemID) && !yield(r) {
					return
				}
			}
		}
	}
}

// settle packs the group of a task if it can be packed: two tasks whose ids have the same hash are not both packed.
func (s *State) settle(r *Record) {
	g := s.Agents[r.owner()].groups[r.index/groupTasks]
	if len(g.records) < groupTasks || slices.ContainsFunc(g.records, func(r *Record) bool {
		return r == nil || r.queued || !Terminal(r.Task.GetState())
	}) {
		return
	}
	page := storedTasks(g.records)
	hashes := idHashes(page)
	b, err := packed.Encode(&taskv1.AgentTasksPage{Tasks: page})
	if err != nil || !s.packed.Add(hashes, g) {
		return
	}
	g.first, g.last = g.records[0].Ordinal, g.records[groupTasks-1].Ordinal
	for i, r := range g.records {
		g.items[i] = itemHash(r.Task.GetWorkItemId())
		delete(s.Tasks, r.Task.GetTaskId())
	}
	g.records, g.packed = nil, b
}

// idHashes returns the keys of tasks in State.packed.
func idHashes(tasks []*taskv1.StoredTask) []uint64 {
	hashes := make([]uint64, len(tasks))
	for i, t := range tasks {
		hashes[i] = packed.Hash("", t.GetTask().GetTaskId())
	}
	return hashes
}

// page returns a packed group as a page has it.
func (g *group) page() *taskv1.PackedTasks {
	var page taskv1.AgentTasksPage
	packed.Read(g.packed, &page)
	return &taskv1.PackedTasks{
		Group: uint32(g.number % pageGroups), Content: g.packed, IdHashes: idHashes(page.GetTasks()), ItemHashes: g.items[:],
		FirstOrdinal: g.first, LastOrdinal: g.last,
	}
}

// addPacked adds the packed group of a page to the tasks of its agent. What is in it is read when it is needed.
func (s *State) addPacked(agent Owner, block int, p *taskv1.PackedTasks) error {
	if p.GetGroup() >= pageGroups || len(p.GetIdHashes()) != groupTasks || len(p.GetItemHashes()) != groupTasks || len(p.GetContent()) == 0 ||
		p.GetFirstOrdinal() <= 0 || p.GetLastOrdinal() < p.GetFirstOrdinal()+groupTasks-1 {
		return fmt.Errorf("group %d has %d bytes with %d tasks of %d items, from ordinal %d to %d",
			p.GetGroup(), len(p.GetContent()), len(p.GetIdHashes()), len(p.GetItemHashes()), p.GetFirstOrdinal(), p.GetLastOrdinal())
	}
	g := s.tasksOf(agent).groupAt(agent, block*pageGroups+int(p.GetGroup()))
	if g.packed != nil || len(g.records) > 0 {
		return fmt.Errorf("group %d is there twice", p.GetGroup())
	}
	if !s.packed.Add(p.GetIdHashes(), g) {
		return fmt.Errorf("group %d has a task that is there twice", p.GetGroup())
	}
	g.packed, g.first, g.last = p.GetContent(), p.GetFirstOrdinal(), p.GetLastOrdinal()
	copy(g.items[:], p.GetItemHashes())
	s.last = max(s.last, g.last)
	return nil
}
