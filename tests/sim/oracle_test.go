package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// worker is what executes commands or steps.
type worker interface {
	run(ctx context.Context)
	calm() // it leaves no more, and is not started anew
}

// worked checks that workers which were there for a while leave no step that they may claim.
func (r *run) worked() error {
	if !r.boards {
		return nil
	}
	return r.ask(func(c *client) error { return c.boardsAtRest(true) })
}

// settled compares the planes of a quiet system with each other.
func (r *run) settled() error {
	return r.ask(func(c *client) (err error) {
		for _, a := range agents {
			err = errors.Join(err, c.compareWaits(a), c.surfaces(a))
		}
		err = errors.Join(err, c.compareDeliveries(), c.nothingOverdue(), c.nothingRunnable(), c.commandsAtRest())
		if r.boards {
			err = errors.Join(err, c.boardsAtRest(false))
		}
		return err
	})
}

// ask calls an oracle that reads.
func (r *run) ask(oracle func(c *client) error) error {
	c := newClient(r.w, r.k, "oracle", r.rep.seed)
	done := make(chan struct{})
	var err error
	r.all.Go(func() {
		defer close(done)
		err = oracle(c)
	})
	if stepErr := r.until("a read", done, nil); stepErr != nil {
		return stepErr
	}
	if err != nil {
		return violated{"planes agree", err}
	}
	return nil
}

// compareWaits compares the active waits of the agent's items in the waiting plane with those that the items show.
func (c *client) compareWaits(agent string) error {
	ctx := planetest.As(c.w.ctx, rpc.RoleOperator)
	waits, err := c.waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: agent, PageSize: 500})
	if err != nil {
		return err
	}
	items, err := c.work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: agent, PageSize: 500})
	if err != nil {
		return err
	}
	var stand, shown []string
	for _, w := range waits.GetWaits() {
		if w.GetWorkItemId() != "" && w.GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE {
			stand = append(stand, fmt.Sprintf("%s at %s, revision %d", w.GetWaitId(), w.GetWorkItemId(),
				w.GetRevision()))
		}
	}
	for _, it := range items.GetWorkItems() {
		for _, w := range it.GetWaits() {
			shown = append(shown, fmt.Sprintf("%s at %s, revision %d", w.GetWaitId(), it.GetWorkItemId(),
				w.GetRevision()))
		}
	}
	slices.Sort(stand)
	slices.Sort(shown)
	if !slices.Equal(stand, shown) {
		return fmt.Errorf("the waits of %s: waiting has %q, work shows %q", agent, stand, shown)
	}
	return nil
}

// nothingOverdue checks that nothing that is due is still to come: no wait, no timer, no turn whose lease is over.
func (c *client) nothingOverdue() error {
	ctx, now := planetest.As(c.w.ctx, rpc.RoleOperator), c.w.shift.Now()
	for _, agent := range agents {
		waits, err := c.waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: agent, PageSize: 500})
		if err != nil {
			return err
		}
		for _, w := range waits.GetWaits() {
			if w.GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE && w.GetDueAt() != nil &&
				w.GetDueAt().AsTime().Before(now) {
				return fmt.Errorf("wait %s of %s was due at %s, and it is %s", w.GetWaitId(), agent,
					w.GetDueAt().AsTime(), now)
			}
			if w.GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE {
				if err := c.w.books.consumed(w); err != nil {
					return err
				}
			}
		}
		timers, err := c.waiting.ListTimers(ctx, &waitingv1.ListTimersRequest{AgentId: agent, PageSize: 500})
		if err != nil {
			return err
		}
		for _, t := range timers.GetTimers() {
			if t.GetStatus() == waitingv1.TimerStatus_TIMER_STATUS_ACTIVE && t.GetNextFireAt().AsTime().Before(now) {
				return fmt.Errorf("timer %s of %s is due since %s, and it is %s", t.GetTimerId(), agent,
					t.GetNextFireAt().AsTime(), now)
			}
		}
	}
	return c.w.books.atRest()
}

// nothingRunnable checks that no agent is idle although it has something to do: an item that can be worked on is one
// that turns made no progress with (SPEC D2, D9).
func (c *client) nothingRunnable() error {
	ctx := planetest.As(c.w.ctx, rpc.RoleOperator)
	for _, agent := range agents {
		why, err := schedulerv1.NewSchedulerServiceClient(c.w.conn(nil, c.name, "scheduler")).
			Explain(ctx, &schedulerv1.ExplainRequest{AgentId: agent})
		if err != nil {
			return err
		}
		v := why.GetVerdict()
		if v.GetAction() == agentv1.DecisionAction_DECISION_ACTION_TICK {
			return fmt.Errorf("%s is idle and should have a tick: %s", agent, v)
		}
		items, err := c.work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: agent, PageSize: 500})
		if err != nil {
			return err
		}
		for _, it := range items.GetWorkItems() {
			if it.GetReadiness() == workv1.Readiness_READINESS_RUNNABLE && v.GetReason() != "no_progress" &&
				v.GetReason() != "message_queued" {
				return fmt.Errorf("item %s of %s can be worked on, and the verdict is %s", it.GetWorkItemId(), agent, v)
			}
		}
	}
	return nil
}

// compareDeliveries compares how often each trigger was called with what it has counted.
func (c *client) compareDeliveries() error {
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	for _, t := range c.k.triggers {
		if n := c.w.books.count("deliveries", t.id); n < t.acked || n > t.attempted {
			return fmt.Errorf("trigger %s has %d deliveries; %d were answered of %d that were made", t.id, n, t.acked,
				t.attempted)
		}
	}
	return nil
}
