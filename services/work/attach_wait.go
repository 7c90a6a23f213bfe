package work

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/derive"
)

// AttachWait attaches a wait to an item, ahead of the waiting plane's event of the same wait
// (SPEC R8). The call and the event carry the wait's revision. Whichever arrives second changes
// nothing unless its revision is higher.
func (s *Service) AttachWait(ctx context.Context, req *workv1.AttachWaitRequest) (*workv1.AttachWaitResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(
		admit(actor, req.GetAgentId()),
		fault.ID("work_item_id", req.GetWorkItemId(), "wi_"),
		fault.ID("wait.wait_id", req.GetWait().GetWaitId(), "wt_"),
	); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *workv1.AttachWaitResponse]{
		Method: "AttachWait", AgentID: req.GetAgentId(),
		Decide: func(st *State, env journal.Env) (journal.Decision[*workv1.AttachWaitResponse], error) {
			// attachWait has its own refusals in place of the other errors of mutable.
			if _, err := st.mutable(env.Actor.Namespace, req.GetAgentId(), req.GetWorkItemId()); errors.Is(err,
				fault.AgentDeleted) {
				return journal.Decision[*workv1.AttachWaitResponse]{}, err
			}
			events, refusal := attachWait(st, env, env.Actor.Namespace, req.GetAgentId(), req.GetWorkItemId(),
				req.GetWait())
			d := journal.Decision[*workv1.AttachWaitResponse]{Events: events}
			if len(events) == 0 {
				it := st.record(env.Actor.Namespace, req.GetWorkItemId())
				d.Reply = &workv1.AttachWaitResponse{
					WorkItem: derive.View(it, st.current(env.Actor.Namespace, req.GetAgentId())),
					Refused:  refusal != workv1.AttachRefusal_ATTACH_REFUSAL_UNSPECIFIED, Reason: refusal,
				}
			}
			return d, nil
		},
		Answer: answerAttach,
	})
}

// answerAttach builds the response of AttachWait from its events.
func answerAttach(events []*journal.Event) (*workv1.AttachWaitResponse, error) {
	for _, ev := range events {
		switch p := ev.Payload.(type) {
		case *workv1.WaitAttached:
			return &workv1.AttachWaitResponse{WorkItem: derive.View(p.GetWorkItem(), p.GetCurrentWorkItemId())}, nil
		case *workv1.WaitAttachRefused:
			return &workv1.AttachWaitResponse{Refused: true, Reason: p.GetReason()}, nil
		}
	}
	return nil, fmt.Errorf("work: no wait_attached among %d events", len(events))
}

// attachWait is the rule of AttachWait and of the events of the waiting plane. An item that
// does not exist, belongs to another agent or is completed cannot wait: refusal says why, and
// the only event is wait_attach_refused. Without a refusal, it returns no events if nothing
// changes: the item has this or a later revision of the wait, the wait has ended or was
// replaced, or the owner is deleted. A new wait of mode wait replaces the one that the item
// has, writes the blocker and releases the focus.
func attachWait(s *State, env journal.Env, namespace, agentID, itemID string, w *workv1.AttachedWait) (
	events []*journal.Event, refusal workv1.AttachRefusal,
) {
	old := s.record(namespace, itemID)
	switch {
	case old == nil:
		refusal = workv1.AttachRefusal_ATTACH_REFUSAL_WORK_ITEM_UNKNOWN
	case old.GetAgentId() != agentID:
		refusal = workv1.AttachRefusal_ATTACH_REFUSAL_FOREIGN_WORK_ITEM
	case old.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED:
		refusal = workv1.AttachRefusal_ATTACH_REFUSAL_WORK_ITEM_COMPLETED
	}
	if refusal != workv1.AttachRefusal_ATTACH_REFUSAL_UNSPECIFIED {
		return []*journal.Event{{
			Namespace: namespace, AgentID: agentID, WorkItemID: itemID,
			Payload: &workv1.WaitAttachRefused{WaitId: w.GetWaitId(), WorkItemId: itemID, Reason: refusal},
		}}, refusal
	}
	if s.ownerIsDeleted(namespace, agentID) {
		return nil, workv1.AttachRefusal_ATTACH_REFUSAL_UNSPECIFIED // the waiting plane ends its waits by itself
	}
	known := attached(old, w.GetWaitId())
	if known != nil && known.GetRevision() >= w.GetRevision() {
		return nil, workv1.AttachRefusal_ATTACH_REFUSAL_UNSPECIFIED
	}
	if known == nil && (s.hasEnded(namespace, agentID, w.GetWaitId()) || superseded(old, w)) {
		return nil, workv1.AttachRefusal_ATTACH_REFUSAL_UNSPECIFIED // it ended, or was replaced, before this arrived
	}
	it := next(old, env)
	if known != nil {
		w = proto.CloneOf(w) // the waiting plane does not know that its reminder was given
		w.RecheckConsumedAt = attached(it, w.GetWaitId()).GetRecheckConsumedAt()
	}
	it.Waits = append(without(it.GetWaits(), w.GetWaitId()), w)
	attachedEvent := &workv1.WaitAttached{WorkItem: it, Wait: w, CurrentWorkItemId: s.current(namespace, agentID)}
	release := false
	if known == nil && w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT {
		// An item has one such wait; this one replaces any other.
		for _, other := range old.GetWaits() {
			if other.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT && other.GetWaitId() != w.GetWaitId() {
				forget(it, other)
				attachedEvent.ReplacedWaitIds = append(attachedEvent.ReplacedWaitIds, other.GetWaitId())
			}
		}
		// The reason of the wait is shown in blocked_by, and the item loses the focus in
		// the same commit (SPEC P1, W5).
		it.BlockedBy, it.BlockedByWaitId, it.Resumed = w.GetReason(), w.GetWaitId(), nil
		if release = attachedEvent.GetCurrentWorkItemId() == itemID; release {
			attachedEvent.CurrentWorkItemId = ""
		}
	}
	derive.ShowReminder(it)
	ev := itemEvent(it, old, attachedEvent)
	ev.Namespace = namespace
	events = append(events, ev)
	if release {
		rel := focusReleased(it, workv1.FocusReleaseReason_FOCUS_RELEASE_REASON_WAITING)
		rel.Namespace = namespace
		events = append(events, rel)
	}
	return events, workv1.AttachRefusal_ATTACH_REFUSAL_UNSPECIFIED
}

// waitEnd is how a wait ended.
type waitEnd struct {
	waitID        string
	revision      int64 // of the wait at its end
	outcome       waitingv1.WaitStatus
	clearsBlocker bool               // the blocker is cleared if the wait wrote it (SPEC P2)
	resumption    *workv1.Resumption // what the item keeps of a wait that blocked it; nil: nothing
}

// detachWait is the rule for the end of a wait. It returns no events if the item is unknown or
// not the agent's, or if the end was recorded before.
func detachWait(s *State, env journal.Env, namespace, agentID, itemID string, end waitEnd) []*journal.Event {
	old := s.record(namespace, itemID)
	if old == nil || old.GetAgentId() != agentID {
		return nil
	}
	if attached(old, end.waitID) == nil &&
		(s.hasEnded(namespace, agentID, end.waitID) ||
			old.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED) {
		return nil
	}
	// The event is written also for a wait that is not attached yet, so that AttachWait,
	// when it arrives later, does not attach a wait that has ended.
	it := next(old, env)
	forget(it, attached(old, end.waitID))
	if end.clearsBlocker && old.GetBlockedByWaitId() == end.waitID {
		it.BlockedBy, it.BlockedByWaitId = "", ""
	}
	if end.resumption != nil && old.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_OPEN {
		it.Resumed = end.resumption
	}
	ev := itemEvent(it, old, &workv1.WaitDetached{
		WorkItem: it, WaitId: end.waitID, WaitRevision: end.revision,
		Outcome: end.outcome,
	})
	ev.Namespace = namespace
	return []*journal.Event{ev}
}

// superseded reports whether w is of mode wait and the item has a newer one of that mode, by
// creation and then by id. An item has only the newest, in whatever order they arrive.
func superseded(it *workv1.WorkItemRecord, w *workv1.AttachedWait) bool {
	if w.GetMode() != waitingv1.WaitMode_WAIT_MODE_WAIT {
		return false
	}
	for _, other := range it.GetWaits() {
		c := derive.Compare(other.GetCreatedAt(), w.GetCreatedAt())
		if other.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT &&
			(c > 0 || c == 0 && other.GetWaitId() > w.GetWaitId()) {
			return true
		}
	}
	return false
}

// forget removes a wait, and with it its reminder, from a record that the caller may change.
// For a nil wait it only chooses the reminder again.
func forget(it *workv1.WorkItemRecord, w *workv1.AttachedWait) {
	it.Waits = without(it.GetWaits(), w.GetWaitId())
	derive.ShowReminder(it)
}

// attached returns the wait or intent with an id that an item has, nil if there is none.
func attached(it *workv1.WorkItemRecord, waitID string) *workv1.AttachedWait {
	for _, w := range it.GetWaits() {
		if w.GetWaitId() == waitID {
			return w
		}
	}
	return nil
}

// ConsumeRecheck records that the owner was reminded of an item (SPEC P5). It changes nothing
// if the item has no pending reminder or one for another time than recheck_at, so it is
// idempotent without the request id, which it does not use.
func (s *Service) ConsumeRecheck(ctx context.Context, req *workv1.ConsumeRecheckRequest) (
	*workv1.ConsumeRecheckResponse, error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(
		admit(actor, req.GetAgentId()),
		fault.ID("work_item_id", req.GetWorkItemId(), "wi_"),
	); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *workv1.ConsumeRecheckResponse]{
		Method: "ConsumeRecheck", AgentID: req.GetAgentId(),
		Decide: func(st *State, env journal.Env) (journal.Decision[*workv1.ConsumeRecheckResponse], error) {
			var d journal.Decision[*workv1.ConsumeRecheckResponse]
			old, err := st.owned(env.Actor.Namespace, req.GetAgentId(), req.GetWorkItemId())
			if err != nil {
				return d, err
			}
			if !derive.RecheckPending(old) || derive.Compare(old.GetRecheckAt(), req.GetRecheckAt()) != 0 {
				d.Reply = &workv1.ConsumeRecheckResponse{
					WorkItem: derive.View(old, st.current(env.Actor.Namespace, req.GetAgentId())),
				}
				return d, nil
			}
			it := next(old, env)
			derive.GiveReminder(it, env.Now)
			d.Events = []*journal.Event{itemEvent(it, old, &workv1.RecheckConsumed{
				WorkItem: it, ConsumedAt: timestamppb.New(env.Now), CurrentWorkItemId: st.current(env.Actor.Namespace,
					req.GetAgentId()),
			})}
			return d, nil
		},
		Answer: journal.AnswerOf(func(p *workv1.RecheckConsumed) *workv1.ConsumeRecheckResponse {
			return &workv1.ConsumeRecheckResponse{WorkItem: derive.View(p.GetWorkItem(), p.GetCurrentWorkItemId())}
		}),
	})
}
