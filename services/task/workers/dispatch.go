package workers

import (
	"slices"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/retry"
	"quartet/services/task/model"
	"quartet/services/task/rules"
)

// Committed handles a durable event of the plane. It runs in the loop of the
// event's partition and never blocks. Messages to workers that do not arrive are
// repeated at the worker's next heartbeat.
func (h *Hub) Committed(ev *journal.Event) {
	switch p := ev.Payload.(type) {
	case *taskv1.TaskQueued:
		h.Notify()
	case *taskv1.TaskStarted:
		if !model.IsChild(p.GetTask()) {
			h.sendLease(ev.Namespace, p)
		}
	case *taskv1.TaskCancelling:
		if c := h.command(ev.TaskID); c != nil {
			h.registry.Send(c.worker, stopMessage(ev.TaskID, p.GetForce()))
		}
	case *taskv1.TaskInputAccepted:
		if c := h.command(ev.TaskID); c != nil {
			h.registry.Send(c.worker, inputMessage(p))
		}
	case *taskv1.TaskRestarting:
		h.dropLease(p.GetTask(), true)
	case *taskv1.TaskCompleted, *taskv1.TaskFailed, *taskv1.TaskCancelled, *taskv1.TaskInterrupted:
		t := model.TaskOf(ev)
		h.dropLease(t, t.GetEndReason() == rules.ReasonWorkerLost)
	}
}

// sendLease sends a durable lease to its worker, if that is connected.
func (h *Hub) sendLease(namespace string, p *taskv1.TaskStarted) {
	worker := model.WorkerOf(namespace, p.GetTask().GetWorkerId(), p.GetSharedWorker())
	_, expires := h.ensureLease(namespace, worker, p.GetTask())
	h.registry.Send(worker, leaseMessage(namespace, p.GetTask(), expires))
}

// dropLease forgets the lease of a command that ended or is to be run again. With lost set, it
// also instructs the worker to kill the command, should the worker be connected again and still
// run it.
func (h *Hub) dropLease(t *taskv1.Task, lost bool) {
	if c := h.command(t.GetTaskId()); c != nil && lost {
		h.registry.Send(c.worker, staleMessage(t.GetTaskId(), c.generation))
	}
	h.leases.Drop(t.GetTaskId())
	h.Notify()
}

// dispatchLoop gives queued commands to workers whenever there may be some, until the Hub stops.
func (h *Hub) dispatchLoop() {
	pacer := retry.New(500*time.Millisecond, 5*time.Second)
	var again <-chan time.Time
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-h.queued:
		case <-again:
		}
		again = nil
		slots := h.Slots()
		if len(slots) == 0 {
			continue
		}
		failed := false
		for i, p := range h.engine.All() {
			n, err := h.leaseFrom(p, i, slots)
			if err != nil && h.ctx.Err() == nil {
				h.cfg.Logger.Warn("task: queued commands could not be given to workers; trying again", zap.Error(err))
				failed = true
			}
			if n == rules.MaxLeases {
				h.Notify() // there may be more
			}
		}
		if failed {
			again = h.cfg.Clock.TimerAt(h.cfg.Clock.Now().Add(pacer.Next())).C()
		} else {
			pacer.Reset()
		}
	}
}

// leaseFrom assigns queued commands of the partition p, which has the given index in the engine, to
// workers, and returns how many.
func (h *Hub) leaseFrom(p *journal.Partition[*model.State], index int, slots []model.WorkerSlot) (int, error) {
	if len(h.engine.All()) > 1 {
		// A copy, since the rule of the partition before may still read its slots after
		// its caller gave up.
		slots = slices.Clone(slots)
		for i := range slots {
			slots[i].HeldElsewhere = 0
			for j, other := range h.engine.All() {
				if j == index {
					continue
				}
				n, _, err := journal.View(h.ctx, other, func(st *model.State) (int, error) {
					return len(st.Workers[slots[i].Worker]), nil
				})
				if err != nil {
					return 0, err
				}
				slots[i].HeldElsewhere += n
			}
		}
	}
	n, _, err := journal.Do(h.ctx, p, journal.Op[*model.State, int]{
		Method: "lease", Actor: *plane.System(""),
		Decide: func(st *model.State, env journal.Env) (journal.Decision[int], error) {
			return rules.DecideLease(st, env, slots)
		},
		Answer: func(events []*journal.Event) (int, error) { return len(events), nil },
	})
	return n, err
}
