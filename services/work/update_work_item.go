package work

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/derive"
	"quartet/services/work/homes"
)

// UpdateWorkItem writes fields of an open item, or of the item in focus if the request names none (SPEC W5). The
// response has the cached descriptor of the plan, which may be old, or if none is cached a new one.
func (s *Service) UpdateWorkItem(ctx context.Context, req *workv1.UpdateWorkItemRequest) (
	*workv1.UpdateWorkItemResponse, error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := admit(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	if err := validateUpdate(req); err != nil {
		return nil, err
	}
	resp, err := plane.Do(ctx, s.engine, plane.Command[*State, *workv1.UpdateWorkItemResponse]{
		Method: "UpdateWorkItem", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*workv1.UpdateWorkItemResponse], error) {
			return decideUpdate(st, env, req)
		},
		Answer: answerUpdate,
	})
	if err != nil {
		return nil, err
	}
	s.plans.Attach(actor.Namespace, resp.GetWorkItem(), homes.LastSeen)
	return resp, nil
}

// validateUpdate checks what needs no record, also that the request sets or clears something.
func validateUpdate(req *workv1.UpdateWorkItemRequest) error {
	if err := fault.First(
		fault.RequestID(req.GetRequestId()),
		optionalID("work_item_id", req.GetWorkItemId(), "wi_"),
		validTodos(req.GetTodoList().GetItems()),
	); err != nil {
		return err
	}
	if req.Objective != nil {
		if err := fault.First(
			fault.Text("objective", req.GetObjective(), fault.MaxObjectiveChars, true),
			fault.NotBlank("objective", req.GetObjective()),
		); err != nil {
			return err
		}
	}
	if req.BlockedBy != nil {
		if err := fault.First(
			fault.TextBytes("blocked_by", req.GetBlockedBy(), fault.MaxFreeTextBytes, true),
			fault.NotBlank("blocked_by", req.GetBlockedBy()),
		); err != nil {
			return err
		}
		if req.GetClearBlockedBy() {
			return fault.Invalid("clear_blocked_by", "true", "must not come together with blocked_by")
		}
	}
	if recheckAt := req.GetRecheckAt(); recheckAt != nil && recheckAt.CheckValid() != nil {
		return fault.Invalid("recheck_at", recheckAt.String(), "must be a time between the years 1 and 9999")
	}
	if req.GetRecheckAt() != nil && req.GetClearRecheckAt() {
		return fault.Invalid("clear_recheck_at", "true", "must not come together with recheck_at")
	}
	if len(changedFields(req)) == 0 {
		return fault.InvalidArgument.New("nothing to update: give " + strings.Join(settable[:len(settable)-1], ", ") +
			" or " + settable[len(settable)-1])
	}
	return nil
}

// selectors are the fields of an UpdateWorkItemRequest that set nothing: they name the request, and the item.
var selectors = []string{"agent_id", "request_id", "work_item_id", "expected_revision"}

// settable has the names of all other fields of an UpdateWorkItemRequest.
var settable = func() (names []string) {
	fields := (*workv1.UpdateWorkItemRequest)(nil).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if name := string(fields.Get(i).Name()); !slices.Contains(selectors, name) {
			names = append(names, name)
		}
	}
	return names
}()

// changedFields returns the names of the record's fields that a request sets or clears, also where the
// item has the value already. A field clear_x of the request clears x.
func changedFields(req *workv1.UpdateWorkItemRequest) (changed []string) {
	m := req.ProtoReflect()
	for _, name := range settable {
		field := strings.TrimPrefix(name, "clear_")
		if m.Has(m.Descriptor().Fields().ByName(protoreflect.Name(name))) && !slices.Contains(changed, field) {
			changed = append(changed, field)
		}
	}
	return changed
}

// decideUpdate is the rule of UpdateWorkItem. An update that would change nothing produces no
// event. Blocking the item in focus, or setting its plan to needs_input, also releases the
// focus.
func decideUpdate(s *State, env journal.Env, req *workv1.UpdateWorkItemRequest) (
	journal.Decision[*workv1.UpdateWorkItemResponse], error,
) {
	var none journal.Decision[*workv1.UpdateWorkItemResponse]
	old, err := s.ownedOrCurrent(env.Actor.Namespace, req.GetAgentId(), req.GetWorkItemId())
	if err == nil && !completesDeletion(env.Actor, req) { // all other requests find a deleted agent's items read-only
		_, err = s.mutable(env.Actor.Namespace, req.GetAgentId(), old.GetWorkItemId())
	}
	if err != nil {
		return none, err
	}
	if err := writable(old, req.ExpectedRevision); err != nil {
		return none, err
	}
	if recheckAt := req.GetRecheckAt(); recheckAt != nil {
		if err := fault.Ahead("recheck_at", env.Now, recheckAt.AsTime()); err != nil {
			return none, err
		}
	}
	it := next(old, env)
	it.Resumed = nil // the agent has turned to the item
	if req.Objective != nil {
		it.Objective = req.GetObjective()
	}
	if st := req.GetPlanStatus(); st != workv1.PlanStatus_PLAN_STATUS_UNSPECIFIED {
		it.PlanStatus = st
	}
	var warnings []*workv1.Warning
	if req.GetTodoList() != nil {
		it.TodoList = req.GetTodoList().GetItems()
		warnings = todoWarnings(it.GetTodoList())
	}
	ended := ""
	switch {
	case req.GetClearBlockedBy():
		// Clearing ends the wait that wrote the blocker; the waiting plane
		// cancels it when it reads this event. Other waits stay.
		ended = it.GetBlockedByWaitId()
		it.BlockedBy, it.BlockedByWaitId = "", ""
		if ended != "" {
			forget(it, attached(old, ended))
		}
	case req.BlockedBy != nil:
		it.BlockedBy, it.BlockedByWaitId = req.GetBlockedBy(), ""
	}
	switch recheckAt := req.GetRecheckAt(); {
	case req.GetClearRecheckAt():
		it.OwnRecheckAt = nil
		derive.ShowReminder(it)
	case recheckAt != nil:
		it.OwnRecheckAt = pbjson.Timestamp(recheckAt.AsTime())
		derive.ShowReminder(it)
	}

	current := s.current(env.Actor.Namespace, req.GetAgentId())
	if sameContent(it, old, env) {
		return journal.Decision[*workv1.UpdateWorkItemResponse]{Remember: true, Reply: &workv1.UpdateWorkItemResponse{
			WorkItem: derive.View(old, current), Warnings: warnings, Unchanged: true,
		}}, nil
	}
	var release workv1.FocusReleaseReason
	if current == it.GetWorkItemId() {
		switch {
		case req.BlockedBy != nil:
			release = workv1.FocusReleaseReason_FOCUS_RELEASE_REASON_BLOCKED
		case req.GetPlanStatus() == workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT:
			release = workv1.FocusReleaseReason_FOCUS_RELEASE_REASON_NEEDS_INPUT
		}
	}
	if release != workv1.FocusReleaseReason_FOCUS_RELEASE_REASON_UNSPECIFIED {
		current = ""
	}
	events := []*journal.Event{itemEvent(it, old, &workv1.WorkItemUpdated{
		WorkItem: it, ChangedFields: changedFields(req), CurrentWorkItemId: current,
		Warnings: warnings, EndedWaitId: ended,
	})}
	if release != workv1.FocusReleaseReason_FOCUS_RELEASE_REASON_UNSPECIFIED {
		events = append(events, focusReleased(it, release))
	}
	return journal.Decision[*workv1.UpdateWorkItemResponse]{Events: events}, nil
}

var answerUpdate = journal.AnswerOf(func(p *workv1.WorkItemUpdated) *workv1.UpdateWorkItemResponse {
	return &workv1.UpdateWorkItemResponse{
		WorkItem: derive.View(p.GetWorkItem(), p.GetCurrentWorkItemId()), Warnings: p.GetWarnings(),
	}
})

// ofEveryWrite are the fields of a record that every write changes, so that they do not make a change.
var ofEveryWrite = []protoreflect.Name{"revision", "updated_at", "resumed"}

// sameContent reports whether an update would change nothing (SPEC W5.4): it equals old in every other field than
// those of ofEveryWrite, derived fields included. The writer of the blocker is one of them, since a blocker that a wait
// wrote ends with that wait. It compares with next(old, env), whose reminders are in the form of this version too; see
// derive.SplitReminder.
func sameContent(it, old *workv1.WorkItemRecord, env journal.Env) bool {
	return plane.EqualExcept(it, next(old, env), ofEveryWrite...)
}

// next returns a copy of a record with the next revision and the time of env. The caller may
// set its fields and change its waits in place; its other parts are shared with old.
func next(old *workv1.WorkItemRecord, env journal.Env) *workv1.WorkItemRecord {
	it := derive.Shallow(old)
	// Waits are the only parts that are changed in place.
	it.Waits = make([]*workv1.AttachedWait, len(old.GetWaits()))
	for i, w := range old.GetWaits() {
		it.Waits[i] = proto.CloneOf(w)
	}
	it.Revision = old.GetRevision() + 1
	it.UpdatedAt = timestamppb.New(env.Now)
	derive.SplitReminder(it)
	return it
}

// writable returns WORK_ITEM_COMPLETED for a completed item (SPEC X7) and REVISION_CONFLICT
// for one that is not at the expected revision (SPEC X3), nil otherwise.
func writable(it *workv1.WorkItemRecord, expected *int64) error {
	if it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED {
		return fault.WorkItemCompleted.Newf("work item %q is completed; create another one for further work",
			it.GetWorkItemId()).
			With("work_item_id", it.GetWorkItemId())
	}
	return atRevision(it, expected)
}

// atRevision returns REVISION_CONFLICT if an item is not at the expected revision. If expected is
// nil, the item may be at any.
func atRevision(it *workv1.WorkItemRecord, expected *int64) error {
	if expected != nil && *expected != it.GetRevision() {
		return fault.RevisionConflict.Newf("work item %q is at revision %d, not %d; read it again and repeat",
			it.GetWorkItemId(), it.GetRevision(), *expected).
			With("work_item_id", it.GetWorkItemId()).
			With("current_revision", strconv.FormatInt(it.GetRevision(), 10)).
			With("expected_revision", strconv.FormatInt(*expected, 10))
	}
	return nil
}

// without returns the waits except the one with an id, in a new slice.
func without(waits []*workv1.AttachedWait, waitID string) []*workv1.AttachedWait {
	var kept []*workv1.AttachedWait
	for _, w := range waits {
		if w.GetWaitId() != waitID {
			kept = append(kept, w)
		}
	}
	return kept
}

// itemEvent returns the event of a payload with the fields that every event of an item has,
// such as the change of its readiness, which the scheduler follows (SPEC X10). old is the
// record before the event, nil for a new item.
func itemEvent(it, old *workv1.WorkItemRecord, payload proto.Message) *journal.Event {
	ev := &journal.Event{AgentID: it.GetAgentId(), WorkItemID: it.GetWorkItemId(), Payload: payload}
	to := derive.ReadinessOf(it)
	if old == nil {
		ev.ReadinessTo, ev.ReadinessReason = to.Name(), to.Reason
		return ev
	}
	if oldReadiness := derive.ReadinessOf(old); oldReadiness != to {
		ev.ReadinessFrom, ev.ReadinessTo, ev.ReadinessReason = oldReadiness.Name(), to.Name(), to.Reason
	}
	return ev
}

// focusReleased returns the event that the agent's focus was taken off an item.
func focusReleased(it *workv1.WorkItemRecord, reason workv1.FocusReleaseReason) *journal.Event {
	return &journal.Event{
		AgentID: it.GetAgentId(), WorkItemID: it.GetWorkItemId(),
		Payload: &workv1.FocusReleased{WorkItemId: it.GetWorkItemId(), Reason: reason},
	}
}
