package rules

import (
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// MaxLeases bounds the leases of one write.
const MaxLeases = 256

// DecideLease assigns queued commands to the workers in slots, at most MaxLeases: the oldest
// command first, each to the worker with the most room. The reply is how many it assigned. A lease
// is durable before it is sent to the worker, so that a crash between the two leaves a lease to
// send again or to expire, and never runs a command twice (SPEC T4, X12).
func DecideLease(s *model.State, env journal.Env, slots []model.WorkerSlot) (journal.Decision[int], error) {
	var d journal.Decision[int]
	free := make([]int, len(slots))
	for i, w := range slots {
		free[i] = w.Capacity - w.HeldElsewhere - len(s.Workers[w.Worker])
	}
	taken := make(map[string]int) // how many commands of each queue were considered
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

// oldestWaiting returns the oldest waiting command for which some worker has room, with its
// placement, and nil if there is none. free[i] is the room of slots[i], and taken counts how
// many commands of each queue were considered. A queue that no worker serves costs one check,
// however long it is, and delays no other queue.
func oldestWaiting(s *model.State, slots []model.WorkerSlot, free []int, taken map[string]int) (*model.Record,
	model.Placement,
) {
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
		for at < len(q.Ids) && !model.AwaitsWorker(s.Items[q.Ids[at]].Task) {
			at++ // it was stopped meanwhile
		}
		taken[key] = at
		if at == len(q.Ids) {
			continue
		}
		if r := s.Items[q.Ids[at]]; oldest == nil || r.Ordinal < oldest.Ordinal {
			oldest, from = r, key
		}
	}
	if oldest == nil {
		return nil, model.Placement{}
	}
	taken[from]++
	return oldest, s.Queues[from].Placement
}
