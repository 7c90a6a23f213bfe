package model

import (
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/packed"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/groups"
)

const (
	// pageTasks is how many tasks of an agent a page has.
	pageTasks = 128
	// evictedGroups is how many groups an agent may have to be evicted. To read one task of an evicted agent, all its
	// groups are read, although not the contents of packed ones; for so many groups that takes 50 µs.
	evictedGroups = 256
)

// store has the tasks of agents by id. A group is packed once all its tasks have ended and none is left in a queue: a
// task that has ended never changes.
type store = groups.Store[ownerTasks, string, Record, facts, summary]

// facts has the ordinals of the first and the last task of a packed group, and the hashes of their work items.
type facts struct {
	first, last int64
	items       [groups.Size]uint32
}

// summary is what is in memory of an evicted agent.
type summary struct {
	newest int64 // the ordinal of the newest task
}

func newStore(s *State) *store {
	return groups.New(func(id string) uint64 { return packed.Hash("", id) },
		groups.Codec[ownerTasks, string, Record, facts, summary]{
			PageGroups: pageTasks / groups.Size, EvictedGroups: evictedGroups,
			New:     func(o Owner) *ownerTasks { return &ownerTasks{agent: o} },
			List:    func(of *ownerTasks) *groups.List[Record, facts] { return &of.tasks },
			Key:     func(_ Owner, r *Record) string { return r.Task.GetTaskId() },
			Index:   func(r *Record) *int { return &r.index },
			NewPage: s.NewPage, Write: writeTasks, Read: readTasks, Keys: keys,
			WritePacked: writePacked, ReadPacked: readPacked,
			Check: checkPage,
			Added: s.added,
			Evict: func(of *ownerTasks, _ proto.Message) (summary, bool) {
				return summary{newest: of.newest()}, of.idle()
			},
			Restore: func(*ownerTasks, proto.Message) {},
		})
}

// added adds a task that was read to what is derived from the tasks that have not ended, or are left in a queue.
func (s *State) added(of *ownerTasks, r *Record) {
	if !Terminal(r.Task.GetState()) {
		of.begin(r)
	}
	if HeldByWorker(r.Task.GetState()) {
		s.addToWorker(r)
	}
	if r.queued {
		s.enqueue(r)
	}
}

// writeTasks adds tasks to a page.
func writeTasks(page proto.Message, records []*Record) {
	p, tasks := page.(*taskv1.AgentTasksPage), make([]taskv1.StoredTask, len(records))
	p.Tasks = slices.Grow(p.GetTasks(), len(records))
	for i, r := range records {
		t := &tasks[i]
		t.Task, t.Ordinal, t.Queued = r.Task, r.Ordinal, r.queued
		t.WorkerNamespace, t.WorkerId, t.StopForced = r.Worker.Namespace, r.Worker.ID, r.StopForced
		t.InputSeq, t.InputEnded, t.Inputs = r.InputSeq, r.InputEnded, r.Inputs
		p.Tasks = append(p.Tasks, t)
	}
}

// readTasks is the inverse of writeTasks.
func readTasks(agent Owner, page proto.Message) []*Record {
	tasks := page.(*taskv1.AgentTasksPage).GetTasks()
	records, group := make([]*Record, len(tasks)), []Record(nil)
	for i, t := range tasks {
		if i%groups.Size == 0 {
			group = make([]Record, min(groups.Size, len(tasks)-i))
		}
		records[i] = &group[i%groups.Size]
		*records[i] = Record{
			Namespace: agent.Namespace, Ordinal: t.GetOrdinal(), Task: t.GetTask(), queued: t.GetQueued(),
			Worker:     plane.KeyOf(t.GetWorkerNamespace(), t.GetWorkerId()),
			StopForced: t.GetStopForced(), InputSeq: t.GetInputSeq(), InputEnded: t.GetInputEnded(),
			Inputs: t.GetInputs(),
		}
	}
	return records
}

func writePacked(page proto.Message, g groups.Packed[facts]) {
	p := page.(*taskv1.AgentTasksPage)
	p.Packed = append(p.Packed, &taskv1.PackedTasks{
		Group: uint32(g.Group), Content: g.Content, IdHashes: g.Hashes, ItemHashes: slices.Clone(g.Facts.items[:]),
		FirstOrdinal: g.Facts.first, LastOrdinal: g.Facts.last,
	})
}

func readPacked(page proto.Message) iter.Seq[groups.Packed[facts]] {
	return func(yield func(groups.Packed[facts]) bool) {
		for _, p := range page.(*taskv1.AgentTasksPage).GetPacked() {
			f := facts{first: p.GetFirstOrdinal(), last: p.GetLastOrdinal()}
			copy(f.items[:], p.GetItemHashes())
			if !yield(groups.Packed[facts]{
				Group: int(p.GetGroup()), Content: p.GetContent(), Hashes: p.GetIdHashes(), Facts: f,
			}) {
				return
			}
		}
	}
}

func keys(_ Owner, page proto.Message) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, t := range page.(*taskv1.AgentTasksPage).GetTasks() {
			if !yield(t.GetTask().GetTaskId()) {
				return
			}
		}
	}
}

// checkPage returns an error for a page with a task or a packed group that cannot be one of an agent.
func checkPage(agent Owner, page proto.Message) error {
	p := page.(*taskv1.AgentTasksPage)
	for _, g := range p.GetPacked() {
		if len(g.GetItemHashes()) != groups.Size || g.GetFirstOrdinal() <= 0 ||
			g.GetLastOrdinal() < g.GetFirstOrdinal()+groups.Size-1 {
			return fmt.Errorf("group %d has tasks of %d items, from ordinal %d to %d", g.GetGroup(),
				len(g.GetItemHashes()), g.GetFirstOrdinal(), g.GetLastOrdinal())
		}
	}
	before := int64(0)
	for i, stored := range p.GetTasks() {
		t := stored.GetTask()
		switch id := t.GetTaskId(); {
		case id == "":
			return fmt.Errorf("number %d of the page has no task", i+1)
		case t.GetAgentId() != agent.ID:
			return fmt.Errorf("%s is a task of agent %q", id, t.GetAgentId())
		case Phase(t.GetState()) < 0:
			return fmt.Errorf("%s is in the unknown state %d", id, t.GetState())
		case stored.GetOrdinal() <= before:
			return fmt.Errorf("%s has the ordinal %d, and the task before it %d", id, stored.GetOrdinal(), before)
		}
		before = stored.GetOrdinal()
	}
	return nil
}

// itemHash returns what a packed group has in memory of the work item of a task: a hash of the id; 0 for no item.
func itemHash(itemID string) uint32 {
	if itemID == "" {
		return 0
	}
	return uint32(packed.Hash("", itemID)) // half of it is enough: the work item of a task that is found is compared
}

// Agents returns the agents that have tasks, in no order.
func (s *State) Agents() iter.Seq[Owner] { return s.ByOwner.Keys() }

// Task returns the record of a task, nil if there is none. For a task in a packed group or of an evicted agent it is
// a copy.
func (s *State) Task(taskID string) *Record { return s.Find(taskID) }

// TasksOf returns the tasks of an agent, oldest first.
func (s *State) TasksOf(o Owner) iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		of := s.ByOwner.Get(o)
		if of == nil {
			return
		}
		for n := range of.tasks.Groups {
			for _, r := range s.Group(o, of, n) {
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
		if _, evicted := s.ByOwner.Summary(o); evicted {
			return
		}
		of := s.ByOwner.Get(o)
		if of == nil {
			return
		}
		for id := range of.active {
			if !yield(s.Items[id]) {
				return
			}
		}
	}
}

// before returns the tasks of an agent with smaller ordinals than ordinal, newest first. If itemID is not empty, it
// returns only tasks of that work item, and reads only the packed groups that may have some.
func (s *State) before(of *ownerTasks, ordinal int64, itemID string) iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		for n, g := range slices.Backward(of.tasks.Groups) {
			if !g.Packed.IsZero() && (g.Facts.first >= ordinal || itemID != "" &&
				!slices.Contains(g.Facts.items[:], itemHash(itemID))) {
				continue
			}
			for _, r := range slices.Backward(s.Group(of.agent, of, n)) {
				if r.Ordinal < ordinal && (itemID == "" || r.Task.GetWorkItemId() == itemID) && !yield(r) {
					return
				}
			}
		}
	}
}

// settle packs a group of an agent if it can be packed.
func (s *State) settle(of *ownerTasks, n int) {
	g := &of.tasks.Groups[n]
	if !g.Full(func(r *Record) bool { return !r.queued && Terminal(r.Task.GetState()) }) {
		return
	}
	f := facts{first: g.Items[0].Ordinal, last: g.Items[groups.Size-1].Ordinal}
	for i, r := range g.Items {
		f.items[i] = itemHash(r.Task.GetWorkItemId())
	}
	s.Pack(of.agent, of, n, f)
}

// Comparable returns what tests compare: the tasks as groups.Store.Content has them, and all other fields.
func (s *State) Comparable() any {
	type fields State
	others := fields(*s)
	others.store = nil
	return struct {
		fields
		content any
	}{others, s.Content()}
}
