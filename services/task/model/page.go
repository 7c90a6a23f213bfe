package model

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/groups"
)

var _ snapshot.Resident = (*State)(nil)

// owner returns the agent of a task.
func (r *Record) owner() Owner { return plane.KeyOf(r.Namespace, r.Task.GetAgentId()) }

// touch calls touch with the owner of the page with a task.
func (s *State) touch(r *Record, touch func(snapshot.Owner)) { touch(s.PageOf(r.owner(), r.index)) }

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
		r := s.Items[id]
		now := r.Task
		if id == t.GetTaskId() {
			now = t
		}
		if AwaitsWorker(now) {
			return
		}
		s.touch(r, touch)
	}
}

// NewPage implements journal.Paged.
func (s *State) NewPage() proto.Message { return &taskv1.AgentTasksPage{} }

// Page implements journal.Paged. The page has one block of an agent's tasks, and that of the first block also has
// whether the agent is deleted. Page returns nil if there is nothing of this, or if o owns no such page.
func (s *State) Page(o snapshot.Owner) proto.Message {
	agent, block, ok := s.Block(o)
	if !ok {
		return nil
	}
	page := &taskv1.AgentTasksPage{Deleted: block == 0 && s.Deleted[agent], PrivateChild: block == 0 && s.Ended[agent]}
	if page.GetDeleted() {
		page.DeletedAt = timestamppb.New(s.DeletedAt[agent])
	}
	if !s.WriteBlock(page, agent, block) && !page.GetDeleted() {
		return nil
	}
	return page
}

// AddPage implements journal.Paged.
func (s *State) AddPage(o snapshot.Owner, page proto.Message) error {
	p, is := page.(*taskv1.AgentTasksPage)
	agent, block, ok := s.Block(o)
	switch {
	case !is || !ok:
		return fmt.Errorf("task: %q of %q has no page of type %T", o.ID, o.Namespace, page)
	case p.GetDeleted() && block > 0:
		return fmt.Errorf("task: block %d says that the agent was deleted, which only the first one may", block)
	}
	if p.GetDeleted() {
		s.delete(agent, p.GetPrivateChild(), p.GetDeletedAt().AsTime())
	}
	if len(p.GetTasks())+len(p.GetPacked()) == 0 {
		return nil
	}
	if err := s.ReadBlock(p, agent, block); err != nil {
		return fmt.Errorf("task: agent %s/%s: %w", agent.Namespace, agent.ID, err)
	}
	of := s.ByOwner.Get(agent)
	for n := block * pageTasks / groups.Size; n < min((block+1)*pageTasks/groups.Size, len(of.tasks.Groups)); n++ {
		s.settle(of, n)
	}
	for _, t := range p.GetTasks() {
		s.last = max(s.last, t.GetOrdinal())
	}
	for _, g := range p.GetPacked() {
		s.last = max(s.last, g.GetLastOrdinal())
	}
	return nil
}

// AllOwners implements journal.Paged.
func (s *State) AllOwners(fn func(snapshot.Owner)) {
	for agent := range s.ByOwner.Keys() {
		s.Pages(agent, s.Len(agent), fn)
	}
	for agent := range s.Deleted {
		if !s.ByOwner.Has(agent) {
			fn(s.PageOf(agent, 0))
		}
	}
}
