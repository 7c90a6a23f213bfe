package task

import (
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// slot is a connected worker that may take commands.
type slot struct {
	worker    workerKey // its namespace is whose commands it takes
	bootID    string
	capacity  int
	elsewhere int // commands it runs for other partitions
}

// takes reports whether a command may go to the worker: one of its namespace, and
// one that is pinned only if it is pinned to this worker (SPEC T4).
func (w slot) takes(r *record) bool {
	if pin := r.task.GetPinnedWorkerId(); pin != "" {
		return w.worker == holder(r.namespace, pin, r.task.GetPinnedSharedWorker())
	}
	return w.worker.namespace == "" || w.worker.namespace == r.namespace
}

// takesOf reports whether commands of a namespace may go to the worker at all.
func (w slot) takesOf(ns string) bool {
	return w.worker.namespace == "" || w.worker.namespace == ns
}

// maxLeases bounds one command of the dispatcher, and so one frame.
const maxLeases = 256

// decideLease gives queued commands to workers: oldest command first, to the
// worker with the most room. That a task is running, with whom and under which
// lease, is durable before the worker hears of it; so a crash between the two
// leaves a lease to repeat or to let lapse, and never runs a command twice
// (SPEC T4, X12).
func decideLease(s *State, env journal.Env, slots []slot) (journal.Decision[int], error) {
	var d journal.Decision[int]
	free := make([]int, len(slots))
	for i, w := range slots {
		free[i] = w.capacity - w.elsewhere - len(s.workers[w.worker])
	}
	taken := make(map[string]int) // queued commands looked at, by namespace
	for len(d.Events) < maxLeases {
		ns, r := s.headFor(slots, free, taken)
		if r == nil {
			break
		}
		best := -1
		for i, w := range slots {
			if free[i] > 0 && w.takes(r) && (best < 0 || free[i] > free[best]) {
				best = i
			}
		}
		free[best]--
		t := next(r.task)
		t.State = taskv1.TaskState_TASK_STATE_RUNNING
		t.WorkerId, t.WorkerBootId = slots[best].worker.id, slots[best].bootID
		t.LeaseGeneration++
		t.StartedAt = stamp(env.Now)
		d.Events = append(d.Events, event(ns, t, &taskv1.TaskStarted{
			Task: t, SharedWorker: slots[best].worker.namespace == "",
		}))
	}
	d.Reply = len(d.Events)
	return d, nil
}

// headFor gives the oldest queued command that some slot has room for, and
// remembers in taken how far it looked.
func (s *State) headFor(slots []slot, free []int, taken map[string]int) (string, *record) {
	var oldest *record
	for ns, q := range s.queues {
		room := false
		for i, w := range slots {
			room = room || free[i] > 0 && w.takesOf(ns)
		}
		if !room {
			continue
		}
		at := taken[ns]
		for at < len(q.ids) && !s.leasable(s.tasks[q.ids[at]], slots, free) {
			at++ // it keeps its place, and nobody behind it waits for it
		}
		taken[ns] = at
		if at == len(q.ids) {
			continue
		}
		if r := s.tasks[q.ids[at]]; oldest == nil || r.ordinal < oldest.ordinal {
			oldest = r
		}
	}
	if oldest == nil {
		return "", nil
	}
	taken[oldest.namespace]++
	return oldest.namespace, oldest
}

// leasable reports whether a queued command could be leased now: it was not
// stopped meanwhile, and if it is pinned its worker has room.
func (s *State) leasable(r *record, slots []slot, free []int) bool {
	if r.task.GetState() != taskv1.TaskState_TASK_STATE_QUEUED {
		return false
	}
	for i, w := range slots {
		if free[i] > 0 && w.takes(r) {
			return true
		}
	}
	return false
}
