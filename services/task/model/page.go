package model

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
)

// pageTasks is how many tasks of an agent a page has.
const pageTasks = 128

// ownerOf returns the owner of the page with the task of an agent at an index.
func ownerOf(agent Owner, index int) snapshot.Owner {
	return snapshot.Owner{Namespace: agent.Namespace, ID: agent.ID + "/" + strconv.Itoa(index/pageTasks)}
}

// blockOf returns the agent of a page and the number of its block of tasks; ok is false if the
// owner is none that ownerOf returns.
func blockOf(o snapshot.Owner) (agent Owner, block int, ok bool) {
	at := strings.LastIndexByte(o.ID, '/')
	if at < 0 {
		return Owner{}, 0, false
	}
	block, err := strconv.Atoi(o.ID[at+1:])
	agent = plane.KeyOf(o.Namespace, o.ID[:at])
	return agent, block, err == nil && block >= 0 && ownerOf(agent, block*pageTasks) == o
}

// owner returns the agent of a task.
func (r *Record) owner() Owner { return plane.KeyOf(r.Namespace, r.Task.GetAgentId()) }

// page returns the owner of the page with a task.
func (r *Record) page() snapshot.Owner { return ownerOf(r.owner(), r.index) }

// Owners implements journal.Paged.
func (s *State) Owners(ev *journal.Event, touch func(snapshot.Owner)) {
	if row, err := eventRows.Of(ev); err == nil {
		row.pages(s, ev, touch)
	}
}

// trimmedBy calls touch with the owners of the tasks that leave the head of their queue when t
// replaces the task with its id.
func (s *State) trimmedBy(ns string, t *taskv1.Task, touch func(snapshot.Owner)) {
	q := s.Queues[PlacementOf(ns, t).Key()]
	if q == nil {
		return
	}
	for _, id := range q.Ids {
		r := s.Tasks[id]
		now := r.Task
		if id == t.GetTaskId() {
			now = t
		}
		if AwaitsWorker(now) {
			return
		}
		touch(r.page())
	}
}

// NewPage implements journal.Paged.
func (s *State) NewPage() proto.Message { return &taskv1.AgentTasksPage{} }

// Page implements journal.Paged. The page has one block of an agent's tasks, and that of the first block also has
// whether the agent is deleted. Page returns nil if there is nothing of this, or if o owns no such page.
func (s *State) Page(o snapshot.Owner) proto.Message {
	agent, block, ok := blockOf(o)
	if !ok {
		return nil
	}
	of, groups, first := s.agents.Peek(agent), 0, block*pageGroups
	if of != nil {
		groups = min(pageGroups, len(of.groups)-first)
	}
	page := &taskv1.AgentTasksPage{Deleted: block == 0 && s.Deleted[agent], PrivateChild: block == 0 && s.Ended[agent]}
	if page.GetDeleted() {
		page.DeletedAt = timestamppb.New(s.DeletedAt[agent])
	}
	if groups <= 0 && !page.GetDeleted() {
		return nil
	}
	for n := first; n < first+groups; n++ {
		if g := &of.groups[n]; g.packed.IsZero() {
			page.Tasks = append(page.Tasks, storedTasks(g.records)...)
		} else {
			page.Packed = append(page.Packed, g.page(n%pageGroups, g.packed.Bytes(), s.idHashes(g.stored())))
		}
	}
	return page
}

// storedTasks returns tasks as pages have them.
func storedTasks(records []*Record) []*taskv1.StoredTask {
	all, pointers := make([]taskv1.StoredTask, len(records)), make([]*taskv1.StoredTask, len(records))
	for i, r := range records {
		t := &all[i]
		t.Task, t.Ordinal, t.Queued = r.Task, r.Ordinal, r.queued
		t.WorkerNamespace, t.WorkerId, t.StopForced = r.Worker.Namespace, r.Worker.ID, r.StopForced
		t.InputSeq, t.InputEnded, t.Inputs = r.InputSeq, r.InputEnded, r.Inputs
		pointers[i] = t
	}
	return pointers
}

// recordOf is the inverse of storedTasks for one task of an agent. It does not set queued; see enqueue.
func recordOf(agent Owner, index int, t *taskv1.StoredTask) *Record {
	return &Record{
		Namespace: agent.Namespace, Ordinal: t.GetOrdinal(), index: index, Task: t.GetTask(),
		Worker:     plane.KeyOf(t.GetWorkerNamespace(), t.GetWorkerId()),
		StopForced: t.GetStopForced(), InputSeq: t.GetInputSeq(), InputEnded: t.GetInputEnded(), Inputs: t.GetInputs(),
	}
}

// AddPage implements journal.Paged.
func (s *State) AddPage(o snapshot.Owner, page proto.Message) error {
	p, is := page.(*taskv1.AgentTasksPage)
	agent, block, ok := blockOf(o)
	switch {
	case !is || !ok:
		return fmt.Errorf("task: %q of %q has no page of type %T", o.ID, o.Namespace, page)
	case len(p.GetTasks())+groupTasks*len(p.GetPacked()) > pageTasks:
		return fmt.Errorf("task: the page has %d tasks and %d groups of %d, and %d tasks are the most",
			len(p.GetTasks()), len(p.GetPacked()), groupTasks, pageTasks)
	case p.GetDeleted() && block > 0:
		return fmt.Errorf("task: block %d says that the agent was deleted, which only the first one may", block)
	}
	if p.GetDeleted() {
		s.delete(agent, p.GetPrivateChild(), p.GetDeletedAt().AsTime())
	}
	var isPacked [pageGroups]bool
	for _, g := range p.GetPacked() {
		if err := s.addPacked(agent, block, g); err != nil {
			return fmt.Errorf("task: agent %s/%s: %w", agent.Namespace, agent.ID, err)
		}
		isPacked[g.GetGroup()] = true
	}
	before, at := int64(0), 0 // at is the place in the page
	for i, stored := range p.GetTasks() {
		if err := s.checkStored(agent, stored, before); err != nil {
			return fmt.Errorf("task: number %d of the page: %w", i+1, err)
		}
		before = stored.GetOrdinal()
		for at < pageTasks && isPacked[at/groupTasks] {
			at += groupTasks
		}
		r := recordOf(agent, block*pageTasks+at, stored)
		at++
		s.add(r)
		if HeldByWorker(r.Task.GetState()) {
			s.addToWorker(r)
		}
		if stored.GetQueued() {
			s.enqueue(r)
		}
		if r.index%groupTasks == groupTasks-1 {
			s.settle(r)
		}
	}
	return nil
}

// checkStored returns an error for a task of an agent's page that cannot be added. before is the
// ordinal of the task before it.
func (s *State) checkStored(agent Owner, stored *taskv1.StoredTask, before int64) error {
	t := stored.GetTask()
	switch id := t.GetTaskId(); {
	case id == "":
		return fmt.Errorf("it has no task")
	case t.GetAgentId() != agent.ID:
		return fmt.Errorf("%s is a task of agent %q", id, t.GetAgentId())
	case s.Task(id) != nil:
		return fmt.Errorf("%s was read before", id)
	case Phase(t.GetState()) < 0:
		return fmt.Errorf("%s is in the unknown state %d", id, t.GetState())
	case stored.GetOrdinal() <= before:
		return fmt.Errorf("%s has the ordinal %d, and the task before it %d", id, stored.GetOrdinal(), before)
	}
	return nil
}

// AllOwners implements journal.Paged.
func (s *State) AllOwners(fn func(snapshot.Owner)) {
	for agent := range s.agents.Keys() {
		ownersOf(agent, s.size(agent), fn)
	}
	for agent := range s.Deleted {
		if !s.agents.Has(agent) {
			fn(ownerOf(agent, 0))
		}
	}
}

// ownersOf calls fn with the owners of the pages of an agent with so many tasks.
func ownersOf(agent Owner, tasks int, fn func(snapshot.Owner)) {
	for first := 0; first < tasks; first += pageTasks {
		fn(ownerOf(agent, first))
	}
}
