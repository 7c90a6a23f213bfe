// Package staletick decides whether the reason of a tick, by which the scheduler wakes an agent,
// still holds. Acquiring a turn, Explain and an agent's posture all use this decision, so that none of
// them announces a turn that another one then drops as stale (SPEC D4). It is pure.
package staletick

import (
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// Facts are what the decision depends on.
type Facts struct {
	// WakePending says that something woke the agent itself that no turn has shown. WakeWaits are the
	// waits that were triggered, if nothing else woke it.
	WakePending bool
	WakeWaits   []string
	// OwnTriggered says that an active wait of the agent itself has deliveries that no turn has
	// shown.
	OwnTriggered bool
	// LastTurnID is the agent's last turn.
	LastTurnID string
	// Queue is the agent's work queue. The request for it must have had the tick's item in
	// work_item_ids.
	Queue *workv1.GetWorkQueueResponse
	// Stalled are the items about which turns made no progress.
	Stalled []*agentv1.StalledItem
}

// Stalled reports whether it is in stalled, so that turns about it made no progress, and was not
// written since. The scheduler sends no ticks about such an item.
func Stalled(it *workv1.WorkItem, stalled []*agentv1.StalledItem) bool {
	for _, s := range stalled {
		switch {
		case s.GetWorkItemId() != it.GetWorkItemId():
		case s.GetRevision() > 0:
			return it.GetRevision() <= s.GetRevision()
		default:
			return !it.GetUpdatedAt().AsTime().After(s.GetSince().AsTime())
		}
	}
	return false
}

// Reason returns why the reason of a tick does not hold any more, or "" if it still holds. It returns ""
// for a nil tick, as a message that is no tick has.
func Reason(t *agentv1.Tick, f Facts) string {
	current := f.Queue.GetCurrent()
	runnable := current.GetReadiness() == workv1.Readiness_READINESS_RUNNABLE
	switch t.GetReason() {
	case agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT:
		if current == nil || current.GetWorkItemId() != t.GetWorkItemId() || !runnable {
			return "the item is no longer current and runnable"
		}
	case agentv1.TickReason_TICK_REASON_PICK_QUEUED:
		// The agent chooses an item itself, but the tick says which one is first, and
		// that must be runnable still.
		switch it := f.Queue.GetNamed(); {
		case runnable && !Stalled(current, f.Stalled):
			return "another item is current and runnable"
		case t.GetWorkItemId() == "" && f.Queue.GetCounts().GetQueuedRunnable() == 0:
			return "no runnable item is queued"
		case t.GetWorkItemId() != "" && (it.GetWorkItemId() != t.GetWorkItemId() ||
			it.GetReadiness() != workv1.Readiness_READINESS_RUNNABLE || it.GetIsCurrent()):
			return "the item is no longer queued and runnable"
		}
	case agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED:
		if len(f.Queue.GetTriggeredBlocked()) == 0 && !current.GetHasTriggeredWaits() {
			return "no triggered item is left to review"
		}
	case agentv1.TickReason_TICK_REASON_RECHECK:
		switch it := f.Queue.GetNamed(); {
		case t.GetWorkItemId() != "" && it.GetWorkItemId() != t.GetWorkItemId():
			return "the item was completed"
		case t.GetWorkItemId() != "" && it.GetRecheckAt() == nil:
			return "what the item was to be reminded of is over"
		}
	case agentv1.TickReason_TICK_REASON_WAKE_HINT:
		switch {
		case !f.WakePending && f.LastTurnID != t.GetLastTurnId():
			return "a turn since has told what woke the agent"
		case len(f.WakeWaits) > 0 && !f.OwnTriggered:
			return "the waits that were triggered are over, or a turn has shown it"
		}
	case agentv1.TickReason_TICK_REASON_UNSPECIFIED:
	}
	return ""
}
