package model

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/journal/event"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/groups"
)

// HeldTask is a command that a worker has, with what may have to be sent to the worker
// again.
type HeldTask struct {
	Namespace string
	Worker    WorkerKey
	Task      *taskv1.Task
	Forced    bool                        // it is to be killed, if it is being stopped
	Inputs    []*taskv1.TaskInputAccepted // the last KeptInputs, oldest first
}

// HeldTasks returns the commands that one worker has or, if of is nil, that any worker
// has, oldest first.
func (s *State) HeldTasks(of *WorkerKey) []HeldTask {
	var found []*Record
	if of != nil {
		for id := range s.Workers[*of] {
			found = append(found, s.Items[id])
		}
	} else {
		for _, held := range s.Workers {
			for id := range held {
				found = append(found, s.Items[id])
			}
		}
	}
	slices.SortFunc(found, func(a, b *Record) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	out := make([]HeldTask, len(found))
	for i, r := range found {
		out[i] = HeldTask{r.Namespace, r.Worker, r.Task, r.StopForced, r.Inputs}
	}
	return out
}

// KeptInputs is how many inputs of a running command are kept for a worker that
// connects again. The rule refuses input while half as many or more are
// unconfirmed, so that all that a worker may lack are kept.
const KeptInputs = 64

// State is one partition of the plane. Its Task messages are replaced and never
// modified, so that readers may keep them. They have no derived fields (SPEC X6).
type State struct {
	event.Tombstones
	// store has the tasks. Items has all that have not ended; the method Task finds all tasks.
	*store
	Queues  map[string]*queue                 // commands that wait for a worker, by Placement.Key
	Workers map[WorkerKey]map[string]struct{} // the tasks that each worker has
	Deleted map[Owner]bool                    // agents that were deleted
	// DeletedAt says when this plane read that they were deleted.
	DeletedAt map[Owner]time.Time
	Ended     map[Owner]bool // the private children in Deleted: they were deleted because their task had ended
	last      int64          // ordinal of the newest task
}

// Owner names the agent that a task belongs to.
type Owner = plane.Key

// WorkerKey names a worker. The namespace is empty for a worker that serves all
// namespaces, so that a tenant's worker never has the same key.
type WorkerKey = plane.Key

// Record is one task. Ordinals order tasks by their creation and are what page tokens have. They are the wal_seq of the
// event that created the task, so that they stay the same when the tasks before it are erased; tasks of earlier
// versions were counted.
type Record struct {
	Namespace  string
	Ordinal    int64
	index      int // in the tasks of its agent
	Task       *taskv1.Task
	Worker     WorkerKey                   // that has the task, or had it when it ended; empty ID: none
	StopForced bool                        // it was asked to stop a second time
	InputSeq   int64                       // of the last input
	InputEnded bool                        // no input follows
	Inputs     []*taskv1.TaskInputAccepted // the last KeptInputs, while a worker has it
	queued     bool                        // it is in its queue
}

// ownerTasks has an agent's tasks.
type ownerTasks struct {
	agent  Owner
	tasks  groups.List[Record, facts] // all, oldest first
	active map[string]struct{}        // the ids of those that have not ended; nil: none
}

// queue has commands that the same workers may take, oldest first. Tasks that were
// stopped while they were queued stay in it until they reach the head.
type queue struct {
	Placement Placement
	Ids       []string
}

// NewState returns the state of an empty log.
func NewState() *State {
	s := &State{
		Queues:    make(map[string]*queue),
		Workers:   make(map[WorkerKey]map[string]struct{}),
		Deleted:   make(map[Owner]bool),
		DeletedAt: make(map[Owner]time.Time),
		Ended:     make(map[Owner]bool),
	}
	s.store = newStore(s)
	return s
}

// Apply folds one event. It refuses an event that cannot follow the ones before it,
// and one that is not known. What it does with an event type is in eventRows.
func (s *State) Apply(ev *journal.Event) error {
	row, err := eventRows.Of(ev)
	if err != nil {
		return err
	}
	return row.fold(s, ev)
}

// delete marks an agent as deleted.
func (s *State) delete(o Owner, privateChild bool, at time.Time) {
	s.Deleted[o] = true
	s.DeletedAt[o] = at
	if privateChild {
		s.Ended[o] = true
	}
}

// applyQueued adds a new task. A command also enters the queue of its placement.
func (s *State) applyQueued(walSeq uint64, ns string, t *taskv1.Task) error {
	id := t.GetTaskId()
	if id == "" || t.GetAgentId() == "" || t.GetState() != taskv1.TaskState_TASK_STATE_QUEUED {
		return fmt.Errorf("task: queued event of %q in state %s", id, t.GetState())
	}
	if s.Task(id) != nil {
		return fmt.Errorf("task: %s is queued a second time", id)
	}
	r := &Record{Namespace: ns, Ordinal: max(s.last+1, int64(walSeq)), Task: t}
	s.last = r.Ordinal
	of := s.Owner(r.owner())
	s.Add(of.agent, of, r)
	of.begin(r)
	if t.GetKind() == taskv1.TaskKind_TASK_KIND_COMMAND_TASK {
		s.enqueue(r)
	}
	return nil
}

// begin adds a task that has not ended to active.
func (of *ownerTasks) begin(r *Record) {
	if of.active == nil {
		of.active = make(map[string]struct{})
	}
	of.active[r.Task.GetTaskId()] = struct{}{}
}

// insert inserts the id of a task into ids of queued tasks, which are in the order of their creation.
func (s *State) insert(ids []string, r *Record) []string {
	at := len(ids)
	if at > 0 && s.Items[ids[at-1]].Ordinal > r.Ordinal {
		at, _ = slices.BinarySearchFunc(ids, r.Ordinal, func(id string, ordinal int64) int {
			return cmp.Compare(s.Items[id].Ordinal, ordinal)
		})
	}
	return slices.Insert(ids, at, r.Task.GetTaskId())
}

// enqueue adds a command to the queue of its placement, which it creates if necessary, before all
// commands that were created later.
func (s *State) enqueue(r *Record) {
	where := PlacementOf(r.Namespace, r.Task)
	q := s.Queues[where.Key()]
	if q == nil {
		q = &queue{Placement: where}
		s.Queues[where.Key()] = q
	}
	q.Ids, r.queued = s.insert(q.Ids, r), true
}

// applyRestarting takes a command from its worker and queues it before all commands
// that were created later.
func (s *State) applyRestarting(ns string, t *taskv1.Task) error {
	if !AwaitsWorker(t) || IsChild(t) {
		return fmt.Errorf("task: %s restarts in state %s with worker %q", t.GetTaskId(), t.GetState(), t.GetWorkerId())
	}
	r := s.Items[t.GetTaskId()]
	if r != nil && !HeldByWorker(r.Task.GetState()) {
		return fmt.Errorf("task: %s restarts from state %s", t.GetTaskId(), r.Task.GetState())
	}
	err := s.replace(ns, t, func(r *Record) {
		s.removeFromWorker(r)
		// The command starts again: input of the lost execution is not written to the next.
		r.Worker, r.InputSeq, r.InputEnded, r.Inputs = WorkerKey{}, 0, false, nil
	})
	if err != nil {
		return err
	}
	s.enqueue(r)
	return nil
}

// replace stores t in place of the task with its id and updates the indexes. Every change of a task
// after its creation goes through it. One that would move the task backwards, skips a revision, or
// changes one that has ended is an error. also, if not nil, changes the rest of the record.
func (s *State) replace(ns string, t *taskv1.Task, also func(*Record)) error {
	r := s.Task(t.GetTaskId())
	if r == nil || r.Namespace != ns || r.Task.GetAgentId() != t.GetAgentId() {
		return fmt.Errorf("task: %q of agent %q in %q is not known", t.GetTaskId(), t.GetAgentId(), ns)
	}
	from, to := r.Task.GetState(), t.GetState()
	switch {
	case Terminal(from), Phase(to) < Phase(from),
		from == to && to != taskv1.TaskState_TASK_STATE_CANCELLING && !IsChild(t) &&
			AwaitsWorker(r.Task) == AwaitsWorker(t):
		return fmt.Errorf("task: %s cannot go from %s to %s", t.GetTaskId(), from, to)
	case t.GetRevision() != r.Task.GetRevision()+1:
		return fmt.Errorf("task: %s goes from revision %d to %d", t.GetTaskId(), r.Task.GetRevision(), t.GetRevision())
	}
	r.Task = t
	if also != nil {
		also(r)
	}
	switch {
	case HeldByWorker(to):
		s.addToWorker(r)
	case Terminal(to):
		s.Owner(r.owner()).end(t.GetTaskId())
		s.removeFromWorker(r)
		r.Inputs = nil
	}
	s.trimQueue(PlacementOf(ns, t).Key())
	if Terminal(to) {
		s.settle(s.Owner(r.owner()), r.index/groups.Size)
	}
	return nil
}

// end removes a task that has ended from active.
func (of *ownerTasks) end(taskID string) {
	if delete(of.active, taskID); len(of.active) == 0 {
		of.active = nil
	}
}

// addToWorker adds a task to the tasks of its worker, if it has a worker.
func (s *State) addToWorker(r *Record) {
	if r.Worker.ID == "" { // a child, or waiting for a worker
		return
	}
	if s.Workers[r.Worker] == nil {
		s.Workers[r.Worker] = make(map[string]struct{})
	}
	s.Workers[r.Worker][r.Task.GetTaskId()] = struct{}{}
}

// removeFromWorker removes a task from the tasks of its worker, if it has a worker.
func (s *State) removeFromWorker(r *Record) {
	held := s.Workers[r.Worker]
	delete(held, r.Task.GetTaskId())
	if len(held) == 0 {
		delete(s.Workers, r.Worker)
	}
}

// trimQueue removes tasks that do not wait any more from the head of a queue, and deletes the queue if none is left.
// The groups of those that have ended are packed if they can be now; see settle.
func (s *State) trimQueue(key string) {
	q := s.Queues[key]
	if q == nil {
		return
	}
	for len(q.Ids) > 0 && !AwaitsWorker(s.Items[q.Ids[0]].Task) {
		r := s.Items[q.Ids[0]]
		r.queued = false
		q.Ids = q.Ids[1:]
		if Terminal(r.Task.GetState()) {
			s.settle(s.Owner(r.owner()), r.index/groups.Size)
		}
	}
	if len(q.Ids) == 0 {
		delete(s.Queues, key)
	}
}

// applyInput keeps an input of a running command.
func (s *State) applyInput(p *taskv1.TaskInputAccepted) error {
	r := s.Items[p.GetTaskId()]
	if r == nil || r.Task.GetState() != taskv1.TaskState_TASK_STATE_RUNNING || AwaitsWorker(r.Task) {
		return fmt.Errorf("task: input for %q, which does not run", p.GetTaskId())
	}
	if p.GetInputSeq() != r.InputSeq+1 || r.InputEnded {
		return fmt.Errorf("task: %s got input %d after %d", p.GetTaskId(), p.GetInputSeq(), r.InputSeq)
	}
	r.InputSeq, r.InputEnded = p.GetInputSeq(), p.GetEndOfInput()
	// A new slice, since readers may have the old one.
	from := max(0, len(r.Inputs)+1-KeptInputs)
	r.Inputs = append(append(make([]*taskv1.TaskInputAccepted, 0, len(r.Inputs)+1-from), r.Inputs[from:]...), p)
	return nil
}

// FindTask returns a task of an agent, active or not; nil if the agent has none of that id.
func (s *State) FindTask(namespace, agent, taskID string) *Record {
	r := s.Task(taskID)
	if r == nil || r.Namespace != namespace || r.Task.GetAgentId() != agent {
		return nil
	}
	return r
}
