package task

import (
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

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
	taken := make(map[string]int) // queued commands looked at, by queue
	for len(d.Events) < maxLeases {
		r, where := headFor(s, slots, free, taken)
		if r == nil {
			break
		}
		best := -1
		for i, w := range slots {
			if free[i] > 0 && w.takes(where) && (best < 0 || free[i] > free[best]) {
				best = i
			}
		}
		free[best]--
		t := next(r.task)
		t.State = taskv1.TaskState_TASK_STATE_RUNNING
		t.WorkerId, t.WorkerBootId = slots[best].worker.id, slots[best].bootID
		t.LeaseGeneration++
		t.StartedAt = stamp(env.Now)
		d.Events = append(d.Events, event(r.namespace, t, &taskv1.TaskStarted{
			Task: t, SharedWorker: slots[best].worker.namespace == "",
		}))
	}
	d.Reply = len(d.Events)
	return d, nil
}

// headFor gives the oldest command that waits and that some slot has room for, and
// remembers in taken how far it looked. A queue that nobody serves costs one look,
// however long it is, and nobody waits behind it.
func headFor(s *State, slots []slot, free []int, taken map[string]int) (*record, placement) {
	var oldest *record
	var from string
	for key, q := range s.queues {
		room := false
		for i, w := range slots {
			room = room || free[i] > 0 && w.takes(q.placement)
		}
		if !room {
			continue
		}
		at := taken[key]
		for at < len(q.ids) && !waits(s.tasks[q.ids[at]].task) {
			at++ // it was stopped meanwhile
		}
		taken[key] = at
		if at == len(q.ids) {
			continue
		}
		if r := s.tasks[q.ids[at]]; oldest == nil || r.ordinal < oldest.ordinal {
			oldest, from = r, key
		}
	}
	if oldest == nil {
		return nil, placement{}
	}
	taken[from]++
	return oldest, s.queues[from].placement
}
