package work

import (
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// waitTypes are the events of the waiting plane that this plane follows.
var waitTypes = []string{"wait_registered", "wait_triggered", "wait_consumed", "wait_resolved", "wait_cancelled"}

// react is the rule for the events of other planes. Most waits were attached by AttachWait
// before, and their registration changes nothing. The events that it returns carry the actor
// of ev, so that the item's history names who registered or ended the wait (SPEC W11).
func react(s *State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	return plane.OnBehalf(ev, reaction(s, env, ev)), nil
}

// reaction returns the events of this plane that follow from ev, without the actor.
func reaction(s *State, env journal.Env, ev *journal.Event) []*journal.Event {
	switch p := ev.Payload.(type) {
	case *agentv1.AgentDeleting:
		return s.ownerDeleted(env, ev.Namespace, ev.AgentID)
	case *waitingv1.WaitRegistered:
		return onWait(s, env, ev.Namespace, p.GetWait())
	case *waitingv1.WaitTriggered:
		return onWait(s, env, ev.Namespace, p.GetWait())
	case *waitingv1.WaitConsumed:
		return onWait(s, env, ev.Namespace, p.GetWait())
	case *waitingv1.WaitResolved:
		w := p.GetWait()
		end := waitEnd{
			waitID: w.GetWaitId(), revision: w.GetRevision(),
			outcome: waitingv1.WaitStatus_WAIT_STATUS_RESOLVED, clearsBlocker: true,
		}
		if w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT {
			end.resumption = &workv1.Resumption{
				Wait: AttachedWaitOf(w), Cause: p.GetCause(), CauseId: p.GetCauseId(),
				At: w.GetEndedAt(),
			}
		}
		return detachWait(s, env, ev.Namespace, w.GetAgentId(), w.GetWorkItemId(), end)
	case *waitingv1.WaitCancelled:
		// clearsBlocker clears blocked_by only if this wait wrote it. If the wait was replaced, its successor has
		// written it, so it stays.
		w := p.GetWait()
		return detachWait(s, env, ev.Namespace, w.GetAgentId(), w.GetWorkItemId(), waitEnd{
			waitID: w.GetWaitId(), revision: w.GetRevision(), outcome: waitingv1.WaitStatus_WAIT_STATUS_CANCELLED,
			clearsBlocker: true,
		})
	}
	return nil
}

// onWait attaches an active wait to its item, or updates the one that is attached.
func onWait(s *State, env journal.Env, namespace string, w *waitingv1.Wait) []*journal.Event {
	if w.GetWorkItemId() == "" || w.GetStatus() != waitingv1.WaitStatus_WAIT_STATUS_ACTIVE {
		return nil // it is a wait of the agent itself, or has ended
	}
	events, _ := attachWait(s, env, namespace, w.GetAgentId(), w.GetWorkItemId(), AttachedWaitOf(w))
	return events
}

// AttachedWaitOf returns the fields of a wait that an item keeps. recheck_consumed_at is this plane's own.
func AttachedWaitOf(w *waitingv1.Wait) *workv1.AttachedWait {
	return plane.CopySameNamed(&workv1.AttachedWait{}, w, "recheck_consumed_at")
}
