package model

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/journal/pages"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
)

// pageTasks is how many tasks of an agent a page has.
const pageTasks = 128

// ownerOf returns the owner of the page with the task of an agent at an index.
func ownerOf(agent Owner, index int) pages.Owner {
	return pages.Owner{Namespace: agent.Namespace, ID: agent.ID + "/" + strconv.Itoa(index/pageTasks)}
}

// blockOf returns the agent of a page and the number of its block of tasks; ok is false if the
// owner is none that ownerOf returns.
func blockOf(o pages.Owner) (agent Owner, block int, ok bool) {
	at := strings.LastIndexByte(o.ID, '/')
	if at < 0 {
		return Owner{}, 0, false
	}
	block, err := strconv.Atoi(o.ID[at+1:])
	agent = plane.KeyOf(o.Namespace, o.ID[:at])
	return agent, block, err == nil && block >= 0 && ownerOf(agent, block*pageTasks) == o
}

// owner returns the owner of the page with a task.
func (r *Record) owner() pages.Owner {
	return ownerOf(plane.KeyOf(r.Namespace, r.Task.GetAgentId()), r.index)
}

// Owners implements journal.Paged.
func (s *State) Owners(ev *journal.Event, touch func(pages.Owner)) {
	switch p := ev.Payload.(type) {
	case *taskv1.OwnerDeleted:
		touch(ownerOf(plane.KeyOf(ev.Namespace, p.GetAgentId()), 0))
	case *taskv1.TaskQueued:
		agent, index := plane.KeyOf(ev.Namespace, p.GetTask().GetAgentId()), 0
		if of := s.Agents[agent]; of != nil {
			index = len(of.Ids)
		}
		touch(ownerOf(agent, index))
	case *taskv1.TaskInputAccepted:
		if r := s.Tasks[p.GetTaskId()]; r != nil {
			touch(r.owner())
		}
	default:
		t := TaskOf(ev)
		if r := s.Tasks[t.GetTaskId()]; r != nil {
			touch(r.owner())
			s.trimmedBy(ev.Namespace, t, touch)
		}
	}
}

// trimmedBy calls touch with the owners of the tasks that leave the head of their queue when t
// replaces the task with its id.
func (s *State) trimmedBy(ns string, t *taskv1.Task, touch func(pages.Owner)) {
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
		touch(r.owner())
	}
}

// NewPage implements journal.Paged.
func (s *State) NewPage() proto.Message { return &taskv1.AgentTasksPage{} }

// Page implements journal.Paged.
func (s *State) Page(o pages.Owner) proto.Message {
	agent, block, ok := blockOf(o)
	if !ok {
		return nil
	}
	var ids []string
	if of := s.Agents[agent]; of != nil {
		ids = of.Ids[min(block*pageTasks, len(of.Ids)):min((block+1)*pageTasks, len(of.Ids))]
	}
	page := &taskv1.AgentTasksPage{Deleted: block == 0 && s.Deleted[agent], PrivateChild: block == 0 && s.Ended[agent]}
	if len(ids) == 0 && !page.GetDeleted() {
		return nil
	}
	stored := make([]taskv1.StoredTask, len(ids))
	page.Tasks = make([]*taskv1.StoredTask, len(ids))
	for i, id := range ids {
		r := s.Tasks[id]
		t := &stored[i]
		t.Task, t.Ordinal, t.Queued = r.Task, r.Ordinal, r.queued
		t.WorkerNamespace, t.WorkerId, t.StopForced = r.Worker.Namespace, r.Worker.ID, r.StopForced
		t.InputSeq, t.InputEnded, t.Inputs = r.InputSeq, r.InputEnded, r.Inputs
		page.Tasks[i] = t
	}
	return page
}

// AddPage implements journal.Paged.
func (s *State) AddPage(o pages.Owner, page proto.Message) error {
	p, is := page.(*taskv1.AgentTasksPage)
	agent, block, ok := blockOf(o)
	switch {
	case !is || !ok:
		return fmt.Errorf("task: %q of %q has no page of type %T", o.ID, o.Namespace, page)
	case len(p.GetTasks()) > pageTasks:
		return fmt.Errorf("task: the page has %d tasks, and %d are the most", len(p.GetTasks()), pageTasks)
	case p.GetDeleted() && block > 0:
		return fmt.Errorf("task: block %d says that the agent was deleted, which only the first one may", block)
	}
	if p.GetDeleted() {
		s.delete(agent, p.GetPrivateChild())
	}
	before := int64(0)
	for i, stored := range p.GetTasks() {
		if err := s.checkStored(agent, stored, before); err != nil {
			return fmt.Errorf("task: number %d of the page: %w", i+1, err)
		}
		before = stored.GetOrdinal()
		r := &Record{
			Namespace: agent.Namespace, Ordinal: before, index: block*pageTasks + i, Task: stored.GetTask(),
			Worker:     plane.KeyOf(stored.GetWorkerNamespace(), stored.GetWorkerId()),
			StopForced: stored.GetStopForced(), InputSeq: stored.GetInputSeq(), InputEnded: stored.GetInputEnded(), Inputs: stored.GetInputs(),
		}
		s.add(r)
		if HeldByWorker(r.Task.GetState()) {
			s.addToWorker(r)
		}
		if stored.GetQueued() {
			s.enqueue(r)
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
	case s.Tasks[id] != nil:
		return fmt.Errorf("%s was read before", id)
	case Phase(t.GetState()) < 0:
		return fmt.Errorf("%s is in the unknown state %d", id, t.GetState())
	case stored.GetOrdinal() <= before:
		return fmt.Errorf("%s has the ordinal %d, and the task before it %d", id, stored.GetOrdinal(), before)
	}
	return nil
}

// AllOwners implements journal.Paged.
func (s *State) AllOwners(fn func(pages.Owner)) {
	for agent, of := range s.Agents {
		for first := 0; first < len(of.Ids); first += pageTasks {
			fn(ownerOf(agent, first))
		}
	}
	for agent := range s.Deleted {
		if s.Agents[agent] == nil {
			fn(ownerOf(agent, 0))
		}
	}
}
