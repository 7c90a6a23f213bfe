package projection

import (
	"slices"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/state"
)

// StaleTick returns why a tick is no longer true, or "" if it still is (SPEC D4).
func StaleTick(m *agentv1.Message, p *Projection, a *agentv1.Agent) string {
	t := m.GetTick()
	if t == nil {
		return ""
	}
	switch t.GetReason() {
	case agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT:
		if it := p.GetCurrent(); it == nil || it.GetWorkItemId() != t.GetWorkItemId() || it.GetReadiness() != workv1.Readiness_READINESS_RUNNABLE {
			return state.StaleTickReason + ": the item is no longer current and runnable"
		}
	case agentv1.TickReason_TICK_REASON_PICK_QUEUED:
		// The agent chooses an item itself, but the tick says which one is first, and
		// that must be true. The oldest item stays among those shown until somebody
		// changes it.
		switch {
		case p.GetCurrent().GetReadiness() == workv1.Readiness_READINESS_RUNNABLE:
			return state.StaleTickReason + ": another item is current and runnable"
		case t.GetWorkItemId() == "" && p.GetCounts().GetQueuedRunnable() == 0:
			return state.StaleTickReason + ": no runnable item is queued"
		case t.GetWorkItemId() != "" && !slices.ContainsFunc(p.GetQueuedRunnable(), func(it *workv1.WorkItem) bool { return it.GetWorkItemId() == t.GetWorkItemId() }):
			return state.StaleTickReason + ": the item is no longer queued and runnable"
		}
	case agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED:
		if len(p.GetTriggeredBlocked()) == 0 && !p.GetCurrent().GetHasTriggeredWaits() {
			return state.StaleTickReason + ": no triggered item is left to review"
		}
	case agentv1.TickReason_TICK_REASON_RECHECK:
		switch it := p.subject; {
		case it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED:
			return state.StaleTickReason + ": the item was completed"
		case t.GetWorkItemId() != "" && it.GetRecheckAt() == nil:
			return state.StaleTickReason + ": what the item was to be reminded of is over"
		}
	case agentv1.TickReason_TICK_REASON_WAKE_HINT:
		switch {
		case p.wake == nil && a.GetLastTurnId() != t.GetLastTurnId():
			return state.StaleTickReason + ": a turn since has told what woke the agent"
		case len(p.wake.GetWaitIds()) > 0 && len(p.ownWaits) == 0:
			return state.StaleTickReason + ": the waits that were triggered are over, or a turn has shown it"
		}
	case agentv1.TickReason_TICK_REASON_UNSPECIFIED:
	}
	return ""
}
