package waiting

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// WaitFor registers a wait that blocks the named item, otherwise the item in focus, otherwise
// the agent (SPEC P1). It returns at once, and replaces the wait that the owner had. A wait
// for a task, a timer or an operator ends with the first input that satisfies it; an external
// wait stays active and counts its deliveries (SPEC P2).
//
// The wait is committed here first. Then a call to the work plane attaches it to the item; if
// the process dies in between or the call fails, the work plane attaches it when it reads the
// wait's event. If the item was completed meanwhile, WaitFor returns WORK_ITEM_COMPLETED, and the
// committed wait is cancelled.
func (s *Service) WaitFor(ctx context.Context, req *waitingv1.WaitForRequest) (*waitingv1.WaitForResponse, error) {
	if err := admitWaitFor(ctx, req); err != nil {
		return nil, err
	}
	target, task, refused := s.resolve(ctx, req)
	// Only an external wait can be weak, unless the work plane reminds of its item.
	reminded := refused == nil && req.GetWake() == waitingv1.Wake_WAKE_EXTERNAL &&
		s.reminded(ctx, req.GetAgentId(), target)
	resp, result, err := plane.DoResult(ctx, s.engine, plane.Command[*State, *waitingv1.WaitForResponse]{
		Method: "WaitFor", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: forAgent(req.GetAgentId(), refused,
			func(st *State, env journal.Env) (journal.Decision[*waitingv1.WaitForResponse], error) {
				return decideWaitFor(st, env, req, target, s.recheck(env.Actor.Namespace, req), task, reminded)
			}),
		Answer: answerWaitFor,
	})
	if err != nil {
		return nil, err
	}
	return resp, s.attach(ctx, resp.GetWait(), result.Replayed)
}

// resolve reads from other planes what the wait is for: its item in target, empty for the
// agent itself, and its task, nil unless the wait is for one. The rule returns refused, so
// that a repeated request gets its first response from the request memory before that (SPEC
// X2).
func (s *Service) resolve(ctx context.Context, req *waitingv1.WaitForRequest) (target string, task *taskv1.Task,
	refused error,
) {
	target, err := s.target(ctx, req.GetAgentId(), req.GetWorkItemId(), !req.GetOwn())
	if err != nil {
		return "", nil, err
	}
	if req.GetWake() != waitingv1.Wake_WAKE_TASK_RESULT {
		return target, nil, nil
	}
	t, err := s.deps.Tasks.GetTask(ctx, &taskv1.GetTaskRequest{AgentId: req.GetAgentId(), TaskId: req.GetResource()})
	return target, t.GetTask(), err
}

// recheck returns after how long the owner of a wait is reminded of it: as the request says,
// or by the default of the namespace; nil for never (SPEC P8).
func (s *Service) recheck(namespace string, req *waitingv1.WaitForRequest) *durationpb.Duration {
	if req.GetRecheckAfter() != nil {
		return req.GetRecheckAfter()
	}
	d, ok := s.cfg.NamespaceRechecks[namespace]
	if !ok {
		d = s.cfg.DefaultRecheck
	}
	if d <= 0 {
		return nil
	}
	return durationpb.New(d)
}

// admitWaitFor checks what WaitFor can check without records: the caller's rights and the form
// of the request.
func admitWaitFor(ctx context.Context, req *waitingv1.WaitForRequest) error {
	if err := fault.First(
		admitWrite(ctx, req),
		fault.TextBytes("reason", req.GetReason(), fault.MaxFreeTextBytes, true),
		fault.NotBlank("reason", req.GetReason()),
		validItemID(req.GetWorkItemId()),
		validSpan("recheck_after", req.GetRecheckAfter(), 0),
	); err != nil {
		return err
	}
	if req.GetOwn() && req.GetWorkItemId() != "" {
		return fault.Invalid("own", "true", "must not come together with work_item_id: either the agent itself "+
			"waits, or the item")
	}
	return validArguments(req)
}

// validArguments checks that the arguments fit the wake. Those that would be ignored are refused,
// because the caller means something by them.
func validArguments(req *waitingv1.WaitForRequest) error {
	wake := strings.ToLower(strings.TrimPrefix(req.GetWake().String(), "WAKE_"))
	switch req.GetWake() {
	case waitingv1.Wake_WAKE_TASK_RESULT:
		if err := fault.ID("resource", req.GetResource(), "tsk_"); err != nil {
			return err
		}
	case waitingv1.Wake_WAKE_EXTERNAL:
		if req.GetResource() != "" {
			if err := fault.ID("resource", req.GetResource(), "trg_"); err != nil {
				return err
			}
		}
	case waitingv1.Wake_WAKE_OPERATOR_INPUT, waitingv1.Wake_WAKE_TIMER:
		if req.GetResource() != "" {
			return fault.Invalid("resource", req.GetResource(), "must be left out with wake "+wake+
				": only task_result and external wait for a record")
		}
	case waitingv1.Wake_WAKE_UNSPECIFIED:
		return fault.Invalid("wake", "", "must be operator_input, task_result, external or timer")
	default:
		return fault.Invalid("wake", req.GetWake().String(), "must be operator_input, task_result, external or timer")
	}
	if m := req.GetDeliveryMode(); m != waitingv1.DeliveryMode_DELIVERY_MODE_UNSPECIFIED &&
		req.GetWake() != waitingv1.Wake_WAKE_EXTERNAL {
		return fault.Invalid("delivery_mode", strings.ToLower(strings.TrimPrefix(m.String(), "DELIVERY_MODE_")),
			"must be left out with wake "+wake+": it says what a trigger brings")
	}
	if req.GetWake() == waitingv1.Wake_WAKE_TIMER {
		return validTime(req.GetAfter(), req.GetAt(), false)
	}
	switch {
	case req.GetAfter() != nil:
		return fault.Invalid("after", req.GetAfter().AsDuration().String(), "must be left out with wake "+wake+
			"; recheck_after reminds of any wait")
	case req.GetAt() != nil:
		return fault.Invalid("at", req.GetAt().AsTime().Format(time.RFC3339), "must be left out with wake "+wake+
			"; recheck_after reminds of any wait")
	}
	return nil
}

// decideWaitFor is the rule of WaitFor. target is the owner: an item, or empty for the agent.
// task is the task to wait for, recheck the time until the reminder, and reminded whether the
// work plane reminds of the item; task and recheck may be nil.
func decideWaitFor(s *State, env journal.Env, req *waitingv1.WaitForRequest, target string,
	recheck *durationpb.Duration, task *taskv1.Task, reminded bool) (journal.Decision[*waitingv1.WaitForResponse],
	error,
) {
	var d journal.Decision[*waitingv1.WaitForResponse]
	ns := env.Actor.Namespace
	a := s.agents.Get(plane.KeyOf(ns, req.GetAgentId()))
	if a != nil && target != "" && a.items.Has(target) {
		return d, itemCompleted(target)
	}
	described := task.GetLabel()
	if req.GetWake() == waitingv1.Wake_WAKE_EXTERNAL && req.GetResource() != "" {
		t, err := s.trigger(ns, req.GetAgentId(), req.GetResource())
		if err != nil {
			return d, err
		}
		described = t.GetDescription()
	}
	if err := within("at", env.Now, req.GetAt(), false); err != nil {
		return d, err
	}
	w := &waitingv1.Wait{
		WaitId: env.NewID("wt_"), AgentId: req.GetAgentId(), WorkItemId: target,
		Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: kinds[req.GetWake()], Reason: req.GetReason(),
		Resource:            req.GetResource(),
		ResourceDescription: described, DeliveryMode: req.GetDeliveryMode(),
		Status:   waitingv1.WaitStatus_WAIT_STATUS_ACTIVE,
		Revision: 1, CreatedAt: timestamppb.New(env.Now),
	}
	if req.GetWake() == waitingv1.Wake_WAKE_TIMER {
		w.DueAt = dueAt(env.Now, req.GetAfter(), req.GetAt())
	}
	if recheck != nil {
		w.RecheckAt = pbjson.Timestamp(env.Now.Add(recheck.AsDuration()))
	}
	// old is the wait that this one replaces. present says that the task has ended, as the task plane said before, or
	// as this plane's journal says by now.
	old, present := (*waitingv1.Wait)(nil), task.GetTerminal()
	if a != nil {
		old = a.blockingWait(target)
		if req.GetWake() == waitingv1.Wake_WAKE_TASK_RESULT && a.tasks.Has(req.GetResource()) {
			present = true
		}
	}
	if target == "" && !present && waitsAlready(old, w) {
		return journal.Decision[*waitingv1.WaitForResponse]{Remember: true, Reply: &waitingv1.WaitForResponse{
			Wait: asStored(old), Warnings: warnings(a.weakIf(old, env.Now, reminded)), Unchanged: true,
		}}, nil
	}
	if createdAt := old.GetCreatedAt().AsTime(); old != nil && (env.Now.Before(createdAt) || env.Now.Equal(createdAt) &&
		w.GetWaitId() < old.GetWaitId()) {
		// The clock was set back. An item keeps the newest of its waits, by creation and then by id.
		w.CreatedAt = timestamppb.New(createdAt.Add(time.Microsecond))
	}
	if old != nil && old.GetTriggerCount() > old.GetConsumedCount() {
		// What came for the old wait and was not looked at yet is not lost: the
		// item goes on being shown as triggered, whatever the new wait is for.
		// The counts go on from the old ones: this very turn may have been shown
		// the trigger, and then its end consumes what was inherited (consume.go).
		// To answer the new wait at once instead would wake an agent that has
		// just looked, and then chosen to wait.
		w.TriggerCount, w.ConsumedCount, w.LastTriggeredAt = old.GetTriggerCount(), old.GetConsumedCount(),
			old.GetLastTriggeredAt()
		w.ReplacesWaitId = old.GetWaitId()
	}
	d.Events = append(d.Events,
		waitEvent(ns, w, &waitingv1.WaitRegistered{Wait: w, WeakReason: a.weakIf(w, env.Now, reminded)}))
	if old != nil {
		d.Events = append(d.Events, cancelled(ns, old, env, waitingv1.WaitEndReason_WAIT_END_REASON_WAIT_REPLACED))
	}
	if present {
		// The task has ended: there is nothing to wait for, and the agent is
		// woken although its message may have been read already.
		d.Events = append(d.Events, resolved(ns, w, env, causeTaskPresent, req.GetResource()))
	}
	return d, nil
}

// waitsAlready reports whether the wait that an agent itself has is the one that it asks for. A
// wait for a time is another one each time, and so is one that is to remind. The wait of an item
// is always made anew, because that takes the focus from the item.
func waitsAlready(old, w *waitingv1.Wait) bool {
	return old != nil && w.GetDueAt() == nil && w.GetRecheckAt() == nil && plane.EqualExcept(old, w,
		"wait_id", "revision", "created_at", "turn_id", "resource_description", // of the time when it was made
		"trigger_count", "consumed_count", "last_triggered_at", "replaces_wait_id", // of what came for it since
		"triggered", "weak_reason") // derived
}

// kinds has the kind of wait for each wake.
var kinds = map[waitingv1.Wake]waitingv1.WaitKind{
	waitingv1.Wake_WAKE_OPERATOR_INPUT: waitingv1.WaitKind_WAIT_KIND_OPERATOR,
	waitingv1.Wake_WAKE_TASK_RESULT:    waitingv1.WaitKind_WAIT_KIND_TASK,
	waitingv1.Wake_WAKE_EXTERNAL:       waitingv1.WaitKind_WAIT_KIND_EXTERNAL,
	waitingv1.Wake_WAKE_TIMER:          waitingv1.WaitKind_WAIT_KIND_TIMER,
}

// answerWaitFor builds the response of WaitFor from its events.
func answerWaitFor(events []*journal.Event) (*waitingv1.WaitForResponse, error) {
	resp := &waitingv1.WaitForResponse{}
	for _, ev := range events {
		switch p := ev.Payload.(type) {
		case *waitingv1.WaitRegistered:
			resp.Wait, resp.Warnings = asStored(p.GetWait()), warnings(p.GetWeakReason())
			resp.Wait.WeakReason = p.GetWeakReason()
		case *waitingv1.WaitResolved:
			resp.Wait = asStored(p.GetWait())
		case *waitingv1.WaitCancelled:
			resp.ReplacedWaitId = p.GetWait().GetWaitId()
		}
	}
	if resp.GetWait() == nil {
		return nil, fmt.Errorf("waiting: no wait_registered among %d events", len(events))
	}
	return resp, nil
}

// target returns the owner of a new record: the named item, or if none is named and current is
// set the item in focus, otherwise "" for the agent. It refuses completed items, and agents
// that do not exist or are deleted.
func (s *Service) target(ctx context.Context, agentID, named string, current bool) (string, error) {
	if named == "" {
		if !current {
			return "", s.deps.Agents.AgentExists(ctx, agentID)
		}
		q, err := s.deps.Work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: agentID, OmitPlans: true})
		if err != nil {
			return "", err
		}
		if id := q.GetCurrent().GetWorkItemId(); id != "" {
			return id, nil
		}
		return "", s.deps.Agents.AgentExists(ctx, agentID)
	}
	it, err := s.deps.Work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{
		AgentId: agentID, WorkItemId: named,
		OmitTodoList: true,
	})
	if err != nil {
		return "", err
	}
	if it.GetWorkItem().GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED {
		return "", itemCompleted(named)
	}
	return named, nil
}

// itemCompleted returns the refusal of a wait for a completed item.
func itemCompleted(itemID string) error {
	return fault.WorkItemCompleted.Newf("work item %q is completed and cannot wait", itemID).
		With("work_item_id", itemID)
}

// attach attaches a wait to its item at once. If the work plane cannot be called, it learns
// of the wait by its event. attach does nothing for a wait that has ended, which happens when
// an old request is repeated (SPEC X2). Its only error is that the item was completed
// meanwhile, and it does not return that for a repeated request: the first one may have attached
// the wait, and the item was completed since.
func (s *Service) attach(ctx context.Context, w *waitingv1.Wait, repeated bool) error {
	if w.GetWorkItemId() == "" || !active(w) {
		return nil
	}
	namespace := rpc.ActorFrom(ctx).Namespace
	current, _, err := plane.View(ctx, s.engine, w.GetAgentId(), func(st *State) (*waitingv1.Wait, error) {
		return st.wait(namespace, w.GetAgentId(), w.GetWaitId())
	})
	if err != nil || !active(current) {
		return nil //nolint:nilerr // the wait is committed, and its events do the rest
	}
	r, err := s.deps.Work.AttachWait(ctx, &workv1.AttachWaitRequest{
		AgentId: w.GetAgentId(), WorkItemId: w.GetWorkItemId(),
		Wait: plane.CopySameNamed(&workv1.AttachedWait{}, w, "recheck_consumed_at"), // which is the work plane's own
	})
	if err == nil && r.GetRefused() && !repeated {
		// The event of the refusal cancels the wait; the caller gets the reason.
		return itemCompleted(w.GetWorkItemId())
	}
	return nil
}
