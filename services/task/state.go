package task

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// keptInputs is how many inputs of a live task are kept for a worker that
// reconnects. decideInput refuses more unconfirmed ones than half of it, so
// what a worker may still lack is always kept.
const keptInputs = 64

// State is a partition of the plane in memory. Task messages in it are
// replaced, never edited; derived fields are not in them (SPEC X6).
type State struct {
	tasks   map[string]*record                // by task id, which is unique over all namespaces
	agents  map[owner]*ownerTasks             // every task of an agent
	items   map[itemKey][]string              // every task of a work item, oldest first
	queues  map[string]*queue                 // commands that wait for a worker, by placement.key
	workers map[workerKey]map[string]struct{} // live commands by worker
	deleted map[owner]bool                    // agents that are deleted, or about to be
	last    int64                             // ordinal of the newest task
}

type owner struct{ namespace, agent string }

// workerKey names a worker: by its namespace, which is empty for one that
// serves all of them, and its id. So no tenant can take another's name.
type workerKey struct{ namespace, id string }

type itemKey struct {
	owner
	item string
}

// record is one task. ordinal orders tasks by their creation and is what page
// tokens hold.
type record struct {
	namespace string
	ordinal   int64
	task      *taskv1.Task
	worker    workerKey                   // that has it while it is live
	forced    bool                        // a second stop was asked for
	inputSeq  int64                       // of the last input
	inputEnd  bool                        // no input follows
	inputs    []*taskv1.TaskInputAccepted // the last keptInputs of a live task
}

type ownerTasks struct {
	ids    []string // oldest first
	active map[string]struct{}
}

// queue is a FIFO of commands that the same workers may take. Tasks that were
// stopped while queued stay in it until they reach the head.
type queue struct {
	placement placement
	ids       []string
}

// NewState gives an empty state.
func NewState() *State {
	return &State{
		tasks:   make(map[string]*record),
		agents:  make(map[owner]*ownerTasks),
		items:   make(map[itemKey][]string),
		queues:  make(map[string]*queue),
		workers: make(map[workerKey]map[string]struct{}),
		deleted: make(map[owner]bool),
	}
}

// terminal reports whether a state is final (SPEC X7).
func terminal(s taskv1.TaskState) bool { return phase(s) == 3 }

// phase orders the states: a task's phase never falls (SPEC T2).
func phase(s taskv1.TaskState) int {
	switch s {
	case taskv1.TaskState_TASK_STATE_QUEUED:
		return 0
	case taskv1.TaskState_TASK_STATE_RUNNING:
		return 1
	case taskv1.TaskState_TASK_STATE_CANCELLING:
		return 2
	case taskv1.TaskState_TASK_STATE_COMPLETED, taskv1.TaskState_TASK_STATE_FAILED,
		taskv1.TaskState_TASK_STATE_CANCELLED, taskv1.TaskState_TASK_STATE_INTERRUPTED:
		return 3
	}
	return -1
}

// Apply implements journal.State.
func (s *State) Apply(ev *journal.Event) error {
	switch p := ev.Payload.(type) {
	case *taskv1.TaskQueued:
		return s.applyQueued(ev.Namespace, p.GetTask())
	case *taskv1.TaskStarted:
		return s.replace(ev.Namespace, p.GetTask(), func(r *record) {
			r.worker = workerKey{ev.Namespace, p.GetTask().GetWorkerId()}
			if p.GetSharedWorker() {
				r.worker.namespace = ""
			}
		})
	case *taskv1.TaskCancelling:
		return s.replace(ev.Namespace, p.GetTask(), func(r *record) { r.forced = r.forced || p.GetForce() })
	case *taskv1.TaskWorktreeChanged:
		return s.replace(ev.Namespace, p.GetTask(), nil)
	case *taskv1.TaskRestarting:
		return s.applyRestarting(ev.Namespace, p.GetTask())
	case *taskv1.TaskCompleted:
		return s.replace(ev.Namespace, p.GetTask(), nil)
	case *taskv1.TaskFailed:
		return s.replace(ev.Namespace, p.GetTask(), nil)
	case *taskv1.TaskCancelled:
		return s.replace(ev.Namespace, p.GetTask(), nil)
	case *taskv1.TaskInterrupted:
		return s.replace(ev.Namespace, p.GetTask(), nil)
	case *taskv1.TaskInputAccepted:
		return s.applyInput(p)
	case *taskv1.OwnerDeleted:
		s.deleted[owner{ev.Namespace, p.GetAgentId()}] = true
		return nil
	}
	return fmt.Errorf("task: event with payload %T", ev.Payload)
}

func (s *State) applyQueued(ns string, t *taskv1.Task) error {
	id := t.GetTaskId()
	if id == "" || t.GetAgentId() == "" || t.GetState() != taskv1.TaskState_TASK_STATE_QUEUED {
		return fmt.Errorf("task: queued event of %q in state %s", id, t.GetState())
	}
	if _, taken := s.tasks[id]; taken {
		return fmt.Errorf("task: %s is queued a second time", id)
	}
	s.last++
	s.tasks[id] = &record{namespace: ns, ordinal: s.last, task: t}
	o := owner{ns, t.GetAgentId()}
	of := s.agents[o]
	if of == nil {
		of = &ownerTasks{active: make(map[string]struct{})}
		s.agents[o] = of
	}
	of.ids = append(of.ids, id)
	of.active[id] = struct{}{}
	if item := t.GetWorkItemId(); item != "" {
		k := itemKey{o, item}
		s.items[k] = append(s.items[k], id)
	}
	if t.GetKind() == taskv1.TaskKind_TASK_KIND_COMMAND_TASK {
		q := s.queueOf(ns, t)
		q.ids = append(q.ids, id)
	}
	return nil
}

// queueOf gives the queue that a command waits in.
func (s *State) queueOf(ns string, t *taskv1.Task) *queue {
	where := placementOf(ns, t)
	q := s.queues[where.key()]
	if q == nil {
		q = &queue{placement: where}
		s.queues[where.key()] = q
	}
	return q
}

// waits reports whether a task waits for a worker: it was never given to one, or
// that was lost and it is to be run again.
func waits(t *taskv1.Task) bool {
	switch t.GetState() {
	case taskv1.TaskState_TASK_STATE_QUEUED:
		return true
	case taskv1.TaskState_TASK_STATE_RUNNING:
		return t.GetWorkerId() == "" && !isChild(t)
	}
	return false
}

// applyRestarting takes a command from its worker and puts it where its age
// belongs, which is before all that were asked for later.
func (s *State) applyRestarting(ns string, t *taskv1.Task) error {
	if !waits(t) || isChild(t) {
		return fmt.Errorf("task: %s restarts in state %s with worker %q", t.GetTaskId(), t.GetState(), t.GetWorkerId())
	}
	r := s.tasks[t.GetTaskId()]
	if r != nil && !live(r.task.GetState()) {
		return fmt.Errorf("task: %s restarts from state %s", t.GetTaskId(), r.task.GetState())
	}
	err := s.replace(ns, t, func(r *record) {
		s.unbind(r)
		// A fresh start: what was typed to the lost one is not typed to the next.
		r.worker, r.inputSeq, r.inputEnd, r.inputs = workerKey{}, 0, false, nil
	})
	if err != nil {
		return err
	}
	q := s.queueOf(ns, t)
	at, _ := slices.BinarySearchFunc(q.ids, r.ordinal, func(id string, ordinal int64) int { return cmp.Compare(s.tasks[id].ordinal, ordinal) })
	q.ids = slices.Insert(q.ids, at, t.GetTaskId())
	return nil
}

// replace puts a task in place of its former self. It is the only transition
// function: whatever would move a task backwards, or past its end, is refused.
func (s *State) replace(ns string, t *taskv1.Task, also func(*record)) error {
	r := s.tasks[t.GetTaskId()]
	if r == nil || r.namespace != ns || r.task.GetAgentId() != t.GetAgentId() {
		return fmt.Errorf("task: %q of agent %q in %q is not known", t.GetTaskId(), t.GetAgentId(), ns)
	}
	from, to := r.task.GetState(), t.GetState()
	switch {
	case terminal(from), phase(to) < phase(from),
		from == to && to != taskv1.TaskState_TASK_STATE_CANCELLING && !isChild(t) && waits(r.task) == waits(t):
		return fmt.Errorf("task: %s cannot go from %s to %s", t.GetTaskId(), from, to)
	case t.GetRevision() != r.task.GetRevision()+1:
		return fmt.Errorf("task: %s goes from revision %d to %d", t.GetTaskId(), r.task.GetRevision(), t.GetRevision())
	}
	r.task = t
	if also != nil {
		also(r)
	}
	switch {
	case live(to):
		s.bind(r)
	case terminal(to):
		delete(s.agents[owner{ns, t.GetAgentId()}].active, t.GetTaskId())
		s.unbind(r)
		r.inputs = nil
	}
	s.trim(placementOf(ns, t).key())
	return nil
}

// live reports whether a worker holds a task in this state.
func live(s taskv1.TaskState) bool {
	return s == taskv1.TaskState_TASK_STATE_RUNNING || s == taskv1.TaskState_TASK_STATE_CANCELLING
}

func (s *State) bind(r *record) {
	if r.worker.id == "" { // no worker runs it
		return
	}
	if s.workers[r.worker] == nil {
		s.workers[r.worker] = make(map[string]struct{})
	}
	s.workers[r.worker][r.task.GetTaskId()] = struct{}{}
}

func (s *State) unbind(r *record) {
	held := s.workers[r.worker]
	delete(held, r.task.GetTaskId())
	if len(held) == 0 {
		delete(s.workers, r.worker)
	}
}

// trim takes what is not queued any more from the head of a queue.
func (s *State) trim(key string) {
	q := s.queues[key]
	if q == nil {
		return
	}
	for len(q.ids) > 0 && !waits(s.tasks[q.ids[0]].task) {
		q.ids = q.ids[1:]
	}
	if len(q.ids) == 0 {
		delete(s.queues, key)
	}
}

func (s *State) applyInput(p *taskv1.TaskInputAccepted) error {
	r := s.tasks[p.GetTaskId()]
	if r == nil || r.task.GetState() != taskv1.TaskState_TASK_STATE_RUNNING || waits(r.task) {
		return fmt.Errorf("task: input for %q, which does not run", p.GetTaskId())
	}
	if p.GetInputSeq() != r.inputSeq+1 || r.inputEnd {
		return fmt.Errorf("task: %s got input %d after %d", p.GetTaskId(), p.GetInputSeq(), r.inputSeq)
	}
	r.inputSeq, r.inputEnd = p.GetInputSeq(), p.GetEndOfInput()
	// A fresh slice: readers may hold the old one.
	from := max(0, len(r.inputs)+1-keptInputs)
	r.inputs = append(append(make([]*taskv1.TaskInputAccepted, 0, len(r.inputs)+1-from), r.inputs[from:]...), p)
	return nil
}

// find gives a task of this agent, or nil.
func (s *State) find(namespace, agent, taskID string) *record {
	r := s.tasks[taskID]
	if r == nil || r.namespace != namespace || r.task.GetAgentId() != agent {
		return nil
	}
	return r
}

// next gives a copy of a task as the next write's result, for a rule to fill.
func next(t *taskv1.Task) *taskv1.Task {
	c := proto.CloneOf(t)
	c.Revision++
	return c
}

// event wraps a payload with the task's coordinates (SPEC X10).
func event(ns string, t *taskv1.Task, payload proto.Message) *journal.Event {
	return &journal.Event{
		Namespace:  ns,
		AgentID:    t.GetAgentId(),
		TaskID:     t.GetTaskId(),
		WorkItemID: t.GetWorkItemId(),
		Payload:    payload,
		// What a worker reports is part of what had the command started.
		Traceparent: t.GetTraceparent(),
	}
}

// taskOf gives the task that an event carries, or nil.
func taskOf(ev *journal.Event) *taskv1.Task {
	if p, ok := ev.Payload.(interface{ GetTask() *taskv1.Task }); ok {
		return p.GetTask()
	}
	return nil
}

func stamp(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }
