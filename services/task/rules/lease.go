package rules

import (
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// MaxLeases bounds one command of the dispatcher, and so one frame.
const MaxLeases = 256

// DecideLease gives queued commands to workers: oldest command first, to the
// worker with the most room. That a task is running, with whom and under which
// lease, is durable before the worker hears of it; so a crash between the two
// leaves a lease to repeat or to let lapse, and never runs a command twice
// (SPEC T4, X12).
func DecideLease(s *model.State, env journal.Env, slots []model.WorkerSlot) (journal.Decision[int], error) {
	var d journal.Decision[int]
	free := make([]int, len(slots))
	for i, w := range slots {
		free[i] = w.Capacity - w.HeldElsewhere - len(s.Workers[w.Worker])
	}
	taken := make(map[string]int) // queued commands looked at, by queue
	for len(d.Events) < MaxLeases {
		r, where := oldestWaiting(s, slots, free, taken)
		if r == nil {
			break
		}
		best := -1
		for i, w := range slots {
			if free[i] > 0 && w.Accepts(where) && (best < 0 || free[i] > free[best]) {
				best = i
			}
		}
		free[best]--
		t := model.NextRevision(r.Task)
		t.State = taskv1.TaskState_TASK_STATE_RUNNING
		t.WorkerId, t.WorkerBootId = slots[best].Worker.ID, slots[best].BootID
		t.LeaseGeneration++
		t.StartedAt = model.Timestamp(env.Now)
		d.Events = append(d.Events, model.NewEvent(r.Namespace, t, &taskv1.TaskStarted{
			Task: t, SharedWorker: slots[best].Worker.Namespace == "",
		}))
	}
	d.Reply = len(d.Events)
	return d, nil
}

// oldestWaiting gives the oldest command that waits and that some slot has room for, and
// remembers in taken how far it looked. A queue that nobody serves costs one look,
// however long it is, and nobody waits behind it.
func oldestWaiting(s *model.State, slots []model.WorkerSlot, free []int, taken map[string]int) (*model.Record, model.Placement) {
	var oldest *model.Record
	var from string
	for key, q := range s.Queues {
		room := false
		for i, w := range slots {
			room = room || free[i] > 0 && w.Accepts(q.Placement)
		}
		if !room {
			continue
		}
		at := taken[key]
		for at < len(q.Ids) && !model.AwaitsWorker(s.Tasks[q.Ids[at]].Task) {
			at++ // it was stopped meanwhile
		}
		taken[key] = at
		if at == len(q.Ids) {
			continue
		}
		if r := s.Tasks[q.Ids[at]]; oldest == nil || r.Ordinal < oldest.Ordinal {
			oldest, from = r, key
		}
	}
	if oldest == nil {
		return nil, model.Placement{}
	}
	taken[from]++
	return oldest, s.Queues[from].Placement
}
