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

// surfaces checks at rest that every surface shows the same of an agent: the list of items with each filter, the queue,
// the agent's posture, and what the scheduler says.
func (c *client) surfaces(agent string) error {
	ctx := planetest.As(c.w.ctx, rpc.RoleOperator)
	list, err := c.work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: agent, PageSize: 500})
	if err != nil {
		return err
	}
	q, err := c.work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: agent})
	if err != nil {
		return err
	}
	all := list.GetWorkItems()
	if err := sameQueue(all, q); err != nil {
		return fmt.Errorf("%s: %w", agent, err)
	}
	if err := c.filters(ctx, agent, all); err != nil {
		return err
	}
	got, err := c.agents.GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: agent})
	if err != nil {
		return err
	}
	a := got.GetAgent()
	why, err := schedulerv1.NewSchedulerServiceClient(c.w.conn(nil, c.name, "scheduler")).
		Explain(ctx, &schedulerv1.ExplainRequest{AgentId: agent})
	if err != nil {
		return err
	}
	// A stale tick, which only the next runner drops, counts nowhere (SPEC D8).
	queued := why.GetVerdict().GetReason() == "message_queued"
	want, err := c.posture(ctx, a, queued, all)
	if err != nil {
		return err
	}
	if a.GetPosture() != want || a.GetCurrentWorkItemId() != q.GetCurrent().GetWorkItemId() {
		return fmt.Errorf("%s is shown as %s (%s) with focus %q; %s follows from its items, and the verdict is %v",
			agent, a.GetPosture(), a.GetPostureReason(), a.GetCurrentWorkItemId(), want, why.GetVerdict())
	}
	for _, one := range why.GetCandidates() {
		i := slices.IndexFunc(all, func(it *workv1.WorkItem) bool { return it.GetWorkItemId() == one.GetWorkItemId() })
		if i < 0 || all[i].GetReasonCode() != one.GetReasonCode() {
			return fmt.Errorf("the scheduler says %v of an item of %s, and the list says %v", one, agent, all)
		}
	}
	return nil
}

// staleTicks gives each agent an item, for which the scheduler queues a tick, and blocks it, so that the tick is stale.
// No runner is there any more to drop it, and every surface shows the agent as if it were dropped (SPEC D8).
func (r *run) staleTicks() error {
	items := map[string]string{}
	steps := []func(c *client, ctx context.Context, agent string) error{
		func(c *client, ctx context.Context, agent string) error {
			resp, err := c.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
				AgentId: agent, Objective: "soon blocked", PlanStatus: workv1.PlanStatus_PLAN_STATUS_READY,
			})
			items[agent] = resp.GetWorkItem().GetWorkItemId()
			return err
		},
		func(c *client, ctx context.Context, agent string) error {
			_, err := c.work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
				AgentId: agent, WorkItemId: items[agent], BlockedBy: new("something"),
			})
			return err
		},
		func(c *client, _ context.Context, agent string) error { return c.surfaces(agent) },
	}
	for _, step := range steps {
		err := r.ask(func(c *client) (err error) {
			for _, agent := range agents {
				err = errors.Join(err, step(c, planetest.As(c.w.ctx, rpc.RoleOperator), agent))
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := r.quiet(); err != nil {
			return err
		}
	}
	return nil
}

// sameQueue checks a queue against all items of its agent.
func sameQueue(all []*workv1.WorkItem, q *workv1.GetWorkQueueResponse) error {
	open := 0
	classes := map[workv1.CandidateClass][]*workv1.WorkItem{}
	for _, it := range all {
		if it.GetState() != workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED {
			open++
		}
		if !it.GetIsCurrent() {
			d := derive(it)
			classes[d.class] = append(classes[d.class], it)
		}
	}
	if int(q.GetCounts().GetOpen()) != open {
		return fmt.Errorf("%d items are open, and the queue counts %d", open, q.GetCounts().GetOpen())
	}
	for _, k := range rankings(q) {
		items := classes[k.class]
		slices.SortStableFunc(items, k.by)
		if int(k.total) != len(items) || len(k.shown) != min(len(items), k.most) {
			return fmt.Errorf("%d items are %s, and the queue counts %d and shows %d", len(items), k.class, k.total,
				len(k.shown))
		}
		for i, it := range k.shown {
			if k.by(it, items[i]) != 0 {
				return fmt.Errorf("%s has item %s in place %d, where %s belongs", k.class, it.GetWorkItemId(), i,
					items[i].GetWorkItemId())
			}
		}
	}
	return nil
}

// filters checks that each filter lists the items that SPEC W10 says.
func (c *client) filters(ctx context.Context, agent string, all []*workv1.WorkItem) error {
	const blocked, asking = workv1.Readiness_READINESS_BLOCKED, workv1.Readiness_READINESS_WAITING_FOR_OPERATOR
	ready := func(r workv1.Readiness) func(it *workv1.WorkItem) bool {
		return func(it *workv1.WorkItem) bool { return derive(it).readiness == r }
	}
	isOpen := func(it *workv1.WorkItem) bool { return it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_OPEN }
	for f, includes := range []func(it *workv1.WorkItem) bool{
		workv1.WorkItemFilter_WORK_ITEM_FILTER_OPEN:                 isOpen,
		workv1.WorkItemFilter_WORK_ITEM_FILTER_COMPLETED:            ready(workv1.Readiness_READINESS_COMPLETED),
		workv1.WorkItemFilter_WORK_ITEM_FILTER_CURRENT:              (*workv1.WorkItem).GetIsCurrent,
		workv1.WorkItemFilter_WORK_ITEM_FILTER_BLOCKED:              ready(blocked),
		workv1.WorkItemFilter_WORK_ITEM_FILTER_WAITING_FOR_OPERATOR: ready(asking),
		workv1.WorkItemFilter_WORK_ITEM_FILTER_RUNNABLE:             ready(workv1.Readiness_READINESS_RUNNABLE),
	} {
		if includes == nil {
			continue
		}
		req := &workv1.ListWorkItemsRequest{AgentId: agent, PageSize: 500, Filter: workv1.WorkItemFilter(f)}
		list, err := c.work.ListWorkItems(ctx, req)
		if err != nil {
			return err
		}
		left := slices.DeleteFunc(slices.Clone(all), func(it *workv1.WorkItem) bool { return !includes(it) })
		if !slices.EqualFunc(left, list.GetWorkItems(), func(x, y *workv1.WorkItem) bool {
			return x.GetWorkItemId() == y.GetWorkItemId()
		}) {
			return fmt.Errorf("filter %s lists %v of %s, and %v belong to it", req.GetFilter(), list.GetWorkItems(),
				agent, left)
		}
	}
	return nil
}

// posture returns the first posture of SPEC A4 whose condition holds. With a focus, only the waits of that item count.
func (c *client) posture(ctx context.Context, a *agentv1.Agent, queued bool, all []*workv1.WorkItem) (
	agentv1.Posture, error,
) {
	switch {
	case a.GetControl() == agentv1.Control_CONTROL_STOPPED:
		return agentv1.Posture_POSTURE_STOPPED, nil
	case a.GetControl() == agentv1.Control_CONTROL_PAUSED:
		return agentv1.Posture_POSTURE_PAUSED, nil
	case a.GetCurrentTurnId() != "":
		return agentv1.Posture_POSTURE_RUNNING_TURN, nil
	case queued:
		return agentv1.Posture_POSTURE_QUEUED_INPUT, nil
	}
	// later ones have lower precedence, and higher numbers
	best := agentv1.Posture_POSTURE_IDLE
	for _, it := range all {
		switch p, ok := postures[derive(it).state]; {
		case !ok:
		case p == agentv1.Posture_POSTURE_RUNNABLE_WORK || a.GetCurrentWorkItemId() == "" || it.GetIsCurrent():
			best = min(best, p)
		}
	}
	if a.GetCurrentWorkItemId() != "" {
		return best, nil
	}
	waits, err := c.waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: a.GetAgentId(), PageSize: 500})
	for _, w := range waits.GetWaits() { // of the agent itself
		if w.GetWorkItemId() == "" && w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT {
			best = min(best, posturesOfWaits[w.GetKind()])
		}
	}
	return best, err
}

var postures = map[workv1.SchedulingState]agentv1.Posture{
	workv1.SchedulingState_SCHEDULING_STATE_RUNNABLE:         agentv1.Posture_POSTURE_RUNNABLE_WORK,
	workv1.SchedulingState_SCHEDULING_STATE_WAITING_TASK:     agentv1.Posture_POSTURE_WAITING_TASK,
	workv1.SchedulingState_SCHEDULING_STATE_WAITING_EXTERNAL: agentv1.Posture_POSTURE_WAITING_EXTERNAL,
	workv1.SchedulingState_SCHEDULING_STATE_WAITING_TIMER:    agentv1.Posture_POSTURE_WAITING_EXTERNAL,
	workv1.SchedulingState_SCHEDULING_STATE_WAITING_OPERATOR: agentv1.Posture_POSTURE_WAITING_OPERATOR,
	workv1.SchedulingState_SCHEDULING_STATE_BLOCKED:          agentv1.Posture_POSTURE_BLOCKED,
}

var posturesOfWaits = map[waitingv1.WaitKind]agentv1.Posture{
	waitingv1.WaitKind_WAIT_KIND_TASK:     agentv1.Posture_POSTURE_WAITING_TASK,
	waitingv1.WaitKind_WAIT_KIND_EXTERNAL: agentv1.Posture_POSTURE_WAITING_EXTERNAL,
	waitingv1.WaitKind_WAIT_KIND_TIMER:    agentv1.Posture_POSTURE_WAITING_EXTERNAL,
	waitingv1.WaitKind_WAIT_KIND_OPERATOR: agentv1.Posture_POSTURE_WAITING_OPERATOR,
}
