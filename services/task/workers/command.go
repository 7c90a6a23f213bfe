package workers

import (
	"context"
	"sync/atomic"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/leasetable"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/services/task/model"
	"quartet/services/task/output"
	"quartet/services/task/rules"
)

// command is what the Hub knows of a command that a worker has, beyond the
// journal. It is the value of the command's lease.
type command struct {
	taskID, namespace, agentID string
	worker                     model.WorkerKey
	generation                 int64 // of the lease

	confirmedInput atomic.Int64 // the last input that the worker wrote to the command
	outputEnd      atomic.Int64 // the offset up to which output is stored

	// write, of capacity 1, has an entry while output is stored and while the end is written, so that no
	// output is stored after the end. Both wait for stores, so it is no mutex: see lock.
	write chan struct{}
	ended bool // guarded by write
}

// lock waits until it holds c.write, or returns the error of ctx.
func (c *command) lock(ctx context.Context) error {
	select {
	case c.write <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fault.From(ctx.Err())
	}
}

func (c *command) unlock() { <-c.write }

// ensureLease gives a command a lease with a full term, or renews the one that it has of the
// same generation. It returns the command of the lease and when the lease expires.
func (h *Hub) ensureLease(namespace string, worker model.WorkerKey, t *taskv1.Task) (c *command, expires time.Time) {
	return h.leases.Ensure(t.GetTaskId(), &command{
		taskID: t.GetTaskId(), namespace: namespace, agentID: t.GetAgentId(), worker: worker,
		generation: t.GetLeaseGeneration(), write: make(chan struct{}, 1),
	}, func(current *command) bool { return current.generation == t.GetLeaseGeneration() })
}

// command returns the command that has a lease for a task; nil if there is none.
func (h *Hub) command(taskID string) *command {
	c, _ := h.leases.Get(taskID)
	return c
}

// renew gives the lease of a command a full term, unless the command has another
// lease by now.
func (h *Hub) renew(c *command) {
	if h.command(c.taskID) == c {
		h.leases.Renew(c.taskID)
	}
}

// raise sets a to v if that is greater.
func raise(a *atomic.Int64, v int64) {
	for old := a.Load(); old < v && !a.CompareAndSwap(old, v); {
		old = a.Load()
	}
}

// OutputEnd returns the offset up to which output of a running command is stored;
// 0 if it is not running.
func (h *Hub) OutputEnd(taskID string) int64 {
	if c := h.command(taskID); c != nil {
		return c.outputEnd.Load()
	}
	return 0
}

// Reach returns whether a command's worker is connected, and how much input it
// has confirmed.
func (h *Hub) Reach(taskID string) rules.Reach {
	c := h.command(taskID)
	if c == nil {
		return rules.Reach{}
	}
	return rules.Reach{Connected: h.registry.Find(c.worker) != nil, ConfirmedInput: c.confirmedInput.Load()}
}

// CountRunning returns how many commands with a lease each worker has; workers without any are
// missing.
func (h *Hub) CountRunning() map[model.WorkerKey]int {
	n := make(map[model.WorkerKey]int)
	h.leases.Each(func(_ string, c *command) { n[c.worker]++ })
	return n
}

// expired ends the commands of leases that expired, because their workers did not report for a
// whole term. Each ends in a goroutine of its own, since the store of one's output may be
// slow.
func (h *Hub) expired(leases []leasetable.Lease[string, *command]) {
	for _, l := range leases {
		c := l.Value
		h.background(func() {
			if over, _ := h.leases.Expired(c.taskID); !over || h.command(c.taskID) != c {
				return // renewed meanwhile
			}
			// If this fails, the table reports the lease again a second later.
			_, _ = h.end(h.ctx, c, *plane.System(c.namespace), rules.End{
				Reason:  rules.ReasonWorkerLost,
				Message: "worker " + c.worker.ID + " did not report for " + h.cfg.LeaseTerm.String(),
			})
		})
	}
}

// end writes the end of a command (SPEC T5). The caller sets the reason, the message and the exit
// code of end. Output that was stored before is part of the end, and none is stored after it. counted
// is false if the end was ignored, because the command has ended before or has another lease.
func (h *Hub) end(ctx context.Context, c *command, actor journal.Actor, end rules.End) (counted bool, err error) {
	if err := c.lock(ctx); err != nil {
		return false, err
	}
	defer c.unlock()
	if c.ended {
		return false, nil
	}
	tail, err := h.cfg.Output.Read(ctx, c.namespace, c.taskID, output.FromEnd(4*rules.TailChars), 4*rules.TailChars)
	if err != nil {
		return false, err
	}
	trimmed := tail.End-tail.Oldest > output.Kept+output.Kept/4
	if trimmed {
		if err := h.cfg.Output.Trim(ctx, c.namespace, c.taskID); err != nil {
			return false, err
		}
	}
	end.TaskID, end.Generation = c.taskID, c.generation
	end.Tail = rules.LastChars(output.EndText(tail, 4*rules.TailChars), rules.TailChars)
	end.Bytes, end.Truncated = tail.End, trimmed || tail.Oldest > 0
	counted, err = plane.Do(ctx, h.engine, plane.Command[*model.State, bool]{
		Frees: true, Method: "end", AgentID: c.agentID, Actor: onBehalfOf(actor, c.namespace),
		Decide: func(st *model.State, env journal.Env) (journal.Decision[bool], error) {
			return rules.DecideEnd(st, env, end)
		},
		Answer: func([]*journal.Event) (bool, error) { return true, nil },
	})
	if err != nil {
		return false, err
	}
	c.ended = true
	// Committed does the same when it sees the event, unless the journal had to be
	// loaded again. By now the command may have another lease.
	if h.command(c.taskID) == c {
		h.leases.Drop(c.taskID)
	}
	h.cfg.Watches.Notify(c.taskID)
	h.Notify()
	return counted, nil
}

// onBehalfOf returns actor in the namespace of a command, which is another one
// than its own for a worker that serves all namespaces.
func onBehalfOf(actor journal.Actor, namespace string) *journal.Actor {
	actor.Namespace = namespace
	return &actor
}
