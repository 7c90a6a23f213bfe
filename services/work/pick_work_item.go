package work

import (
	"context"
	"fmt"
	"strings"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/derive"
	"quartet/services/work/homes"
)

// PickWorkItem moves the agent's focus to an open item (SPEC W4). A blocked or waiting item
// may be picked for inspection, which does not change its readiness.
func (s *Service) PickWorkItem(ctx context.Context, req *workv1.PickWorkItemRequest) (*workv1.PickWorkItemResponse,
	error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := admit(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	if err := fault.First(
		fault.RequestID(req.GetRequestId()),
		fault.ID("work_item_id", req.GetWorkItemId(), "wi_"),
		fault.TextBytes("reason", req.GetReason(), fault.MaxFreeTextBytes, false),
	); err != nil {
		return nil, err
	}
	resp, err := plane.Do(ctx, s.engine, plane.Command[*State, *workv1.PickWorkItemResponse]{
		Method: "PickWorkItem", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*workv1.PickWorkItemResponse], error) {
			return decidePick(st, env, req)
		},
		Answer: answerPick,
	})
	if err != nil {
		return nil, err
	}
	s.plans.Attach(actor.Namespace, resp.GetWorkItem(), homes.Ensured)
	return resp, nil
}

// decidePick is the rule of PickWorkItem. It writes an event also if the item is in focus
// already. Leaving a runnable item without a reason is only a warning.
func decidePick(s *State, env journal.Env, req *workv1.PickWorkItemRequest) (
	journal.Decision[*workv1.PickWorkItemResponse], error,
) {
	var none journal.Decision[*workv1.PickWorkItemResponse]
	it, err := s.mutable(env.Actor.Namespace, req.GetAgentId(), req.GetWorkItemId())
	if err != nil {
		return none, err
	}
	if it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED {
		return none, fault.WorkItemCompleted.Newf("work item %q is completed and cannot be picked; ListWorkItems "+
			"with filter queued shows what can", it.GetWorkItemId()).
			With("work_item_id", it.GetWorkItemId())
	}
	if it.GetResumed() != nil {
		it = derive.Shallow(it)
		it.Resumed = nil // the agent has turned to the item
	}
	picked := &workv1.WorkItemPicked{
		PreviousWorkItemId: s.current(env.Actor.Namespace, req.GetAgentId()),
		CurrentWorkItemId:  it.GetWorkItemId(),
		CurrentReadiness:   derive.ReadinessOf(it).Ready,
		Reason:             req.GetReason(),
		SwitchKind:         workv1.SwitchKind_SWITCH_KIND_EXPLICIT_FOCUS_PICK,
		WorkItem:           it,
	}
	switch prev := s.record(env.Actor.Namespace, picked.GetPreviousWorkItemId()); {
	case picked.GetPreviousWorkItemId() == it.GetWorkItemId():
		picked.SwitchKind = workv1.SwitchKind_SWITCH_KIND_SAME_WORK_ITEM
		picked.PreviousReadiness = picked.GetCurrentReadiness()
	case prev != nil:
		picked.PreviousWorkItem = prev
		picked.PreviousReadiness = derive.ReadinessOf(prev).Ready
		if picked.GetPreviousReadiness() == workv1.Readiness_READINESS_RUNNABLE {
			picked.SwitchKind = workv1.SwitchKind_SWITCH_KIND_EXPLICIT_FOCUS_OVERRIDE
			picked.ReasonRequired = true
			picked.ReasonMissing = strings.TrimSpace(req.GetReason()) == ""
		}
	}
	ev := &journal.Event{AgentID: it.GetAgentId(), WorkItemID: it.GetWorkItemId(), Payload: picked}
	return journal.Decision[*workv1.PickWorkItemResponse]{Events: []*journal.Event{ev}}, nil
}

var answerPick = journal.AnswerOf(func(p *workv1.WorkItemPicked) *workv1.PickWorkItemResponse {
	resp := &workv1.PickWorkItemResponse{
		WorkItem:         derive.View(p.GetWorkItem(), p.GetCurrentWorkItemId()),
		PreviousWorkItem: derive.View(p.GetPreviousWorkItem(), p.GetCurrentWorkItemId()),
		BindingNote: fmt.Sprintf("Further calls of this turn are bound to work item %s unless they name another.",
			p.GetCurrentWorkItemId()),
	}
	if p.GetReasonMissing() {
		resp.Warnings = append(resp.Warnings, &workv1.Warning{
			Kind: workv1.WarningKind_WARNING_KIND_REASON_MISSING,
			Message: fmt.Sprintf("Work item %s is still runnable; give a reason when you leave a runnable item.",
				p.GetPreviousWorkItemId()),
		})
	}
	if r := p.GetCurrentReadiness(); r != workv1.Readiness_READINESS_RUNNABLE {
		resp.Warnings = append(resp.Warnings, &workv1.Warning{
			Kind: workv1.WarningKind_WARNING_KIND_NOT_RUNNABLE,
			Message: fmt.Sprintf("Work item %s is %s; picking it for inspection does not make it runnable.",
				p.GetCurrentWorkItemId(), derive.ReadinessNames[r]),
		})
	}
	return resp
})
