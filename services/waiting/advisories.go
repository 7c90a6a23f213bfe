package waiting

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// Short names for why a wait is weak (SPEC P8).
const (
	notWeak         = waitingv1.WeakReason_WEAK_REASON_UNSPECIFIED
	weakNoTrigger   = waitingv1.WeakReason_WEAK_REASON_NO_LIVE_TRIGGER
	weakTriggerDead = waitingv1.WeakReason_WEAK_REASON_TRIGGER_DEAD
)

// weakText is what a warning says of a weak reason.
var weakText = map[waitingv1.WeakReason]string{
	weakNoTrigger: "nothing can end this wait: its owner has no live trigger; make one with CreateExternalTrigger, " +
		"or give recheck_after",
	weakTriggerDead: "nothing can end this wait: its trigger was cancelled or has expired; make a new one and wait " +
		"for that, or give recheck_after",
}

// weak returns why nothing can end an active wait or remind of it, and notWeak where something
// can or the wait has ended. Only external waits can be weak: they need a live trigger. The
// receiver may be nil.
func (a *agentWaits) weak(w *waitingv1.Wait, now time.Time) waitingv1.WeakReason {
	if !active(w) || w.GetKind() != waitingv1.WaitKind_WAIT_KIND_EXTERNAL {
		return notWeak
	}
	if remindsLater(w, now) {
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

// remindsLater reports whether the agent will be reminded of a wait at a time that has not come yet.
func remindsLater(w *waitingv1.Wait, now time.Time) bool {
	recheckAt := w.GetRecheckAt()
	return recheckAt != nil && w.GetRecheckConsumedAt() == nil && recheckAt.AsTime().After(now)
}

// weakIf is weak, but returns notWeak if reminded says that the owner will be reminded of the
// wait's item.
func (a *agentWaits) weakIf(w *waitingv1.Wait, now time.Time, reminded bool) waitingv1.WeakReason {
	if reminded {
		return notWeak
	}
	return a.weak(w, now)
}

// reminded reports whether the owner of an item will be reminded of it at a later time, which
// the work plane knows. It reports false for an empty itemID, and if the work plane cannot be
// called.
func (s *Service) reminded(ctx context.Context, agentID, itemID string) bool {
	if itemID == "" {
		return false
	}
	r, err := s.deps.Work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{
		AgentId: agentID, WorkItemId: itemID,
		OmitTodoList: true,
	})
	it := r.GetWorkItem()
	return err == nil && it.GetRecheckAt() != nil && it.GetRecheckConsumedAt() == nil && it.GetRecheckAt().AsTime().
		After(s.deps.Clock.Now())
}

// strengthen sets the weak reason to notWeak for waits whose owner will be reminded of their item.
func (s *Service) strengthen(ctx context.Context, waits ...*waitingv1.Wait) {
	checked := map[string]bool{} // by item
	for _, w := range waits {
		if w.GetWeakReason() == notWeak {
			continue
		}
		strong, known := checked[w.GetWorkItemId()]
		if !known {
			strong = s.reminded(ctx, w.GetAgentId(), w.GetWorkItemId())
			checked[w.GetWorkItemId()] = strong
		}
		if strong {
			w.WeakReason = notWeak
		}
	}
}

// addSupervision sets the weak reason of the active waits that need an answer of a supervisor (SPEC A14.3): those of
// a private child for an operator, and those for the task of a child that asks something. Unlike other waits, these
// are weak even if their owner will be reminded. The agent plane knows both kinds; if it cannot be called, the waits
// stay as they are.
func (s *Service) addSupervision(ctx context.Context, agentID string, waits ...*waitingv1.Wait) {
	concerned := func(w *waitingv1.Wait) bool {
		return active(w) && (w.GetKind() == waitingv1.WaitKind_WAIT_KIND_OPERATOR ||
			w.GetKind() == waitingv1.WaitKind_WAIT_KIND_TASK)
	}
	if !slices.ContainsFunc(waits, concerned) {
		return
	}
	supervisor, askedBy, err := s.deps.Agents.Supervision(ctx, agentID)
	if err != nil {
		return
	}
	for _, w := range waits {
		switch {
		case !concerned(w):
		case w.GetKind() == waitingv1.WaitKind_WAIT_KIND_OPERATOR && supervisor != "":
			w.WeakReason = waitingv1.WeakReason_WEAK_REASON_SUPERVISOR_MUST_ANSWER
		case w.GetKind() == waitingv1.WaitKind_WAIT_KIND_TASK && slices.Contains(askedBy, w.GetResource()):
			w.WeakReason = waitingv1.WeakReason_WEAK_REASON_CHILD_ASKS
		}
	}
}

// liveTriggers returns the triggers that accept deliveries at now, in order of creation.
func (a *agentWaits) liveTriggers(now time.Time) []*waitingv1.Trigger {
	if a == nil {
		return nil
	}
	return slices.DeleteFunc(a.triggers.Living(), func(t *waitingv1.Trigger) bool { return expired(t, now) })
}

// weakened returns the ids of the active waits that would be weak without the trigger t: no
// other live trigger reaches them, and no reminder is ahead. Intents that a delivery
// registered are left out, because they end with their trigger.
func (a *agentWaits) weakened(t *waitingv1.Trigger, now time.Time) []string {
	var ids []string
	for _, w := range a.activeWaits(func(w *waitingv1.Wait) bool { return reaches(t, w) && !ownInterest(w) }) {
		if remindsLater(w, now) {
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

// warnings returns the warning of a weak wait, none for notWeak.
func warnings(weakReason waitingv1.WeakReason) []*waitingv1.WaitWarning {
	if weakReason == notWeak {
		return nil
	}
	return []*waitingv1.WaitWarning{{
		Kind:    waitingv1.WaitWarningKind_WAIT_WARNING_KIND_WEAK_WAIT,
		Message: weakText[weakReason],
	}}
}

// shown returns a copy of a wait as readers see it: with what is derived from the triggers and
// the time.
func (a *agentWaits) shown(w *waitingv1.Wait, now time.Time) *waitingv1.Wait {
	v := asStored(w)
	v.WeakReason = a.weak(w, now)
	return v
}

// asStored returns a copy of a wait as the response to its own mutation shows it, which
// depends on the events alone.
func asStored(w *waitingv1.Wait) *waitingv1.Wait {
	v := proto.CloneOf(w)
	v.Triggered = v.GetTriggerCount() > v.GetConsumedCount()
	return v
}
