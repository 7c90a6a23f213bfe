package work

import (
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// waitTypes is what this plane hears: where waits begin, are triggered, and end.
var waitTypes = []string{"wait_registered", "wait_triggered", "wait_consumed", "wait_resolved", "wait_cancelled"}

// react is the rule for what other planes say. It repeats what AttachWait said
// already in most cases; the wait's revision makes that a no-op. Whichever comes
// first, an item's history names who made or ended the wait (SPEC W11).
func react(s *State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	events, err := reaction(s, env, ev)
	return plane.OnBehalf(ev, events), err
}

func reaction(s *State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	switch p := ev.Payload.(type) {
	case *agentv1.AgentDeleting:
		return s.ownerDeleted(env, ev.Namespace, ev.AgentID), nil
	case *waitingv1.WaitRegistered:
		return onWait(s, env, ev.Namespace, p.GetWait()), nil
	case *waitingv1.WaitTriggered:
		return onWait(s, env, ev.Namespace, p.GetWait()), nil
	case *waitingv1.WaitConsumed:
		return onWait(s, env, ev.Namespace, p.GetWait()), nil
	case *waitingv1.WaitResolved:
		w := p.GetWait()
		return detachWait(s, env, ev.Namespace, w.GetAgentId(), w.GetWorkItemId(), w.GetWaitId(), w.GetRevision(), waitingv1.WaitStatus_WAIT_STATUS_RESOLVED, true), nil
	case *waitingv1.WaitCancelled:
		// A replaced wait leaves the text to its successor; any other end
		// leaves nothing that could still explain it.
		w := p.GetWait()
		return detachWait(s, env, ev.Namespace, w.GetAgentId(), w.GetWorkItemId(), w.GetWaitId(), w.GetRevision(), waitingv1.WaitStatus_WAIT_STATUS_CANCELLED, true), nil
	}
	return nil, nil
}

func onWait(s *State, env journal.Env, namespace string, w *waitingv1.Wait) []*journal.Event {
	if w.GetWorkItemId() == "" || w.GetStatus() != waitingv1.WaitStatus_WAIT_STATUS_ACTIVE {
		return nil // the agent's own wait, or one that ended by now
	}
	events, _ := attachWait(s, env, namespace, w.GetAgentId(), w.GetWorkItemId(), AttachedWaitOf(w))
	return events
}

// AttachedWaitOf is what an item keeps of a wait.
func AttachedWaitOf(w *waitingv1.Wait) *workv1.AttachedWait {
	return &workv1.AttachedWait{
		WaitId:          w.GetWaitId(),
		Kind:            w.GetKind(),
		Mode:            w.GetMode(),
		Revision:        w.GetRevision(),
		Reason:          w.GetReason(),
		Resource:        w.GetResource(),
		TriggerCount:    w.GetTriggerCount(),
		ConsumedCount:   w.GetConsumedCount(),
		LastTriggeredAt: w.GetLastTriggeredAt(),
		CreatedAt:       w.GetCreatedAt(),
		RecheckAt:       w.GetRecheckAt(),
		ReplacesWaitId:  w.GetReplacesWaitId(),
	}
}
