package waiting

import (
	"context"
	"time"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"

	"google.golang.org/protobuf/proto"
)

// Short names for why a wait is weak (SPEC P8).
const (
	notWeak         = waitingv1.WeakReason_WEAK_REASON_UNSPECIFIED
	weakNoTrigger   = waitingv1.WeakReason_WEAK_REASON_NO_LIVE_TRIGGER
	weakTriggerDead = waitingv1.WeakReason_WEAK_REASON_TRIGGER_DEAD
)

var weakText = map[waitingv1.WeakReason]string{
	weakNoTrigger:   "nothing can end this wait: its owner has no live trigger; make one with CreateExternalTrigger, or give recheck_after",
	weakTriggerDead: "nothing can end this wait: its trigger was cancelled or has expired; make a new one and wait for that, or give recheck_after",
}

// weak says why nothing can end a wait or remind of it, "" where something can.
// Operators, tasks and times come by themselves; the outside needs an address.
func (a *agentWaits) weak(w *waitingv1.Wait, now time.Time) waitingv1.WeakReason {
	if !active(w) || w.GetKind() != waitingv1.WaitKind_WAIT_KIND_EXTERNAL {
		return notWeak
	}
	if at := w.GetRecheckAt(); at != nil && w.GetRecheckConsumedAt() == nil && at.AsTime().After(now) {
		return notWeak
	}
	for _, t := range a.liveTriggers(now) {
		if reaches(t, w) {
			return notWeak
		}
	}
	if w.GetResource() != "" {
		return weakTriggerDead
	}
	return weakNoTrigger
}

// weakIf is weak for a wait whose item the owner may be reminded of anyway.
func (a *agentWaits) weakIf(w *waitingv1.Wait, now time.Time, reminded bool) waitingv1.WeakReason {
	if reminded {
		return notWeak
	}
	return a.weak(w, now)
}

// reminded says whether the owner is to be reminded of an item. That is the work
// plane's to know; as long as it cannot be asked, a wait is rather called weak.
func (s *Service) reminded(ctx context.Context, agentID, itemID string) bool {
	if itemID == "" {
		return false
	}
	r, err := s.deps.Work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: agentID, WorkItemId: itemID, OmitTodoList: true})
	it := r.GetWorkItem()
	return err == nil && it.GetRecheckAt() != nil && it.GetRecheckConsumedAt() == nil && it.GetRecheckAt().AsTime().After(s.deps.Clock.Now())
}

// strengthen takes the advice off waits whose items remind of themselves.
func (s *Service) strengthen(ctx context.Context, waits ...*waitingv1.Wait) {
	asked := map[string]bool{}
	for _, w := range waits {
		if w.GetWeakReason() == notWeak {
			continue
		}
		strong, known := asked[w.GetWorkItemId()]
		if !known {
			strong = s.reminded(ctx, w.GetAgentId(), w.GetWorkItemId())
			asked[w.GetWorkItemId()] = strong
		}
		if strong {
			w.WeakReason = notWeak
		}
	}
}

func (a *agentWaits) liveTriggers(now time.Time) []*waitingv1.Trigger {
	if a == nil {
		return nil
	}
	return a.triggers.list("", len(a.triggers.order), func(t *waitingv1.Trigger) bool { return lives(t) && !expired(t, now) })
}

// weakened are the waits that only this trigger could end.
func (a *agentWaits) weakened(t *waitingv1.Trigger, now time.Time) []string {
	var ids []string
	for _, w := range a.activeWaits(func(w *waitingv1.Wait) bool { return reaches(t, w) && !ownInterest(w) }) {
		if at := w.GetRecheckAt(); at != nil && w.GetRecheckConsumedAt() == nil && at.AsTime().After(now) {
			continue
		}
		alone := true
		for _, other := range a.liveTriggers(now) {
			alone = alone && (other.GetTriggerId() == t.GetTriggerId() || !reaches(other, w))
		}
		if alone {
			ids = append(ids, w.GetWaitId())
		}
	}
	return ids
}

func warnings(weakReason waitingv1.WeakReason) []*waitingv1.WaitWarning {
	if weakReason == notWeak {
		return nil
	}
	return []*waitingv1.WaitWarning{{Kind: waitingv1.WaitWarningKind_WAIT_WARNING_KIND_WEAK_WAIT, Message: weakText[weakReason]}}
}

// shown is a wait as readers see it.
func (a *agentWaits) shown(w *waitingv1.Wait, now time.Time) *waitingv1.Wait {
	v := asStored(w)
	v.WeakReason = a.weak(w, now)
	return v
}

// asStored is a wait as the answer to its own mutation has it, which is made
// from the events alone.
func asStored(w *waitingv1.Wait) *waitingv1.Wait {
	v := proto.CloneOf(w)
	v.Triggered = v.GetTriggerCount() > v.GetConsumedCount()
	return v
}
