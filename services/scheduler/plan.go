package scheduler

import (
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/staletick"
)

const (
	// maxFailedTicks is after how many ticks in a row whose turns failed an agent is left alone
	// until there is new input (SPEC D4).
	maxFailedTicks = 3
	// maxIdleTurns is after how many turns in a row without progress, about whatever items, an
	// agent is left alone until there is new input or a change (SPEC D9). An item is left alone
	// after three.
	maxIdleTurns = 9
)

// The actions of a decision.
const (
	ActionNothing  = agentv1.DecisionAction_DECISION_ACTION_NOTHING
	ActionDispatch = agentv1.DecisionAction_DECISION_ACTION_DISPATCH
	ActionTick     = agentv1.DecisionAction_DECISION_ACTION_TICK
	ActionIdle     = agentv1.DecisionAction_DECISION_ACTION_IDLE
)

// Facts is everything that a decision rests on.
type Facts struct {
	Agent *agentv1.AgentFacts
	Queue *workv1.GetWorkQueueResponse
	Now   time.Time
	// StaleTick is why the tick that the next turn would take is no longer true, so that
	// AcquireTurn drops it; empty if it is true, or another message comes first. Only Explain
	// sets it: what the scheduler itself does about a stale tick is to wait until it is
	// dropped.
	StaleTick string
}

// Verdict is the decision that Plan makes.
type Verdict struct {
	Action   agentv1.DecisionAction
	Tick     agentv1.TickReason
	Reason   string // the rule that decided
	ItemID   string // the item that it is about; empty: none
	Revision int64  // of that item
	// Recheck is the item whose reminder is due, if the tick is a recheck: the reminder
	// is marked as given.
	Recheck *workv1.WorkItem
}

// Plan decides for one agent (SPEC D2). It is pure: the same facts give the same verdict.
func Plan(f Facts) Verdict {
	// Nothing is decided for an agent that may not run, that runs, or that has a message.
	a := f.Agent.GetAgent()
	switch {
	case a.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_ACTIVE:
		return Verdict{Action: ActionNothing, Reason: "agent_deleted"}
	case a.GetControl() == agentv1.Control_CONTROL_STOPPED:
		return Verdict{Action: ActionNothing, Reason: "agent_stopped"}
	case a.GetControl() == agentv1.Control_CONTROL_PAUSED:
		return Verdict{Action: ActionNothing, Reason: "agent_paused"}
	case a.GetCurrentRunId() != "":
		return Verdict{Action: ActionNothing, Reason: "run_open"}
	case f.Agent.GetQueued() > 1 || f.Agent.GetQueued() == 1 && f.StaleTick == "":
		return Verdict{Action: ActionDispatch, Reason: "message_queued"}
	}

	v := tickOrIdle(f)
	if v.Action != ActionTick {
		return v
	}

	// After too many turns in vain only new input is worth another one.
	lastTurn := f.Agent.GetLastTurnStartedAt().AsTime()
	var since time.Time // from when on input is new; zero: from any time
	switch {
	case f.Agent.GetFailedTicks() >= maxFailedTicks:
		// Turns that fail show the agent nothing, so a trigger stays unseen permanently.
		// Only what arrived after the last attempt counts.
		since = lastTurn
	case a.GetIdleTurns() >= maxIdleTurns:
		// Each turn that changed nothing showed what it was about, so unseen triggers run out.
	default:
		return v
	}
	if input, isNew := newInput(f, since); isNew {
		return input
	}

	// A change from outside since the last turn began is new input as well.
	if changed := f.Queue.GetChangedAt(); changed != nil && changed.AsTime().After(lastTurn) {
		return v
	}
	return Verdict{Action: ActionIdle, Reason: "no_progress", ItemID: v.ItemID, Revision: v.Revision}
}

// tickOrIdle returns the tick of the first rule that holds, in the order of SPEC D2, and idle if none
// does. It makes no tick to work on a stalled item. Plan, not this function, takes into account how many of
// the agent's ticks in a row failed or changed nothing.
func tickOrIdle(f Facts) Verdict {
	q := f.Queue
	current := q.GetCurrent()
	runnable := current.GetReadiness() == workv1.Readiness_READINESS_RUNNABLE
	if runnable && !staletick.Stalled(current, f.Agent.GetStalledItems()) {
		return tick(agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT, "current_runnable", current)
	}
	if v, ok := arrived(f, time.Time{}); ok {
		return v
	}
	if len(q.GetQueuedRunnable()) > 0 {
		return tick(agentv1.TickReason_TICK_REASON_PICK_QUEUED, "queued_runnable", q.GetQueuedRunnable()[0])
	}
	if v, ok := reminder(f); ok {
		return v
	}

	// What could be worked on is stalled.
	if runnable {
		return noProgress(current)
	}
	if stalled := q.GetPassedOver(); len(stalled) > 0 {
		return noProgress(stalled[0])
	}
	return idle(q)
}

// noProgress returns the verdict to do nothing although an item can be worked on.
func noProgress(it *workv1.WorkItem) Verdict {
	return Verdict{Action: ActionIdle, Reason: "no_progress", ItemID: it.GetWorkItemId(), Revision: it.GetRevision()}
}

// newInput returns the tick about something that arrived after since, else the one for a
// reminder that is due, which was not given yet; ok is false if there is neither.
func newInput(f Facts, since time.Time) (v Verdict, ok bool) {
	if v, ok := arrived(f, since); ok {
		return v, true
	}
	return reminder(f)
}

// arrived returns the tick about something that arrived from outside after since, for an item
// or for the agent itself; ok is false if nothing did. A zero since is any time.
func arrived(f Facts, since time.Time) (v Verdict, ok bool) {
	if t := triggered(f, since); t != nil {
		return tick(agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED, "triggered_blocked", t), true
	}
	if f.Agent.GetWakeHint() && (since.IsZero() || f.Agent.GetWokenAt().AsTime().After(since)) {
		return Verdict{Action: ActionTick, Tick: agentv1.TickReason_TICK_REASON_WAKE_HINT, Reason: "agent_triggered"},
			true
	}
	return Verdict{}, false
}

// reminder returns the tick for the earliest reminder that is due; ok is false if none is.
func reminder(f Facts) (v Verdict, ok bool) {
	for _, it := range f.Queue.GetRechecks() {
		if !it.GetRecheckAt().AsTime().After(f.Now) {
			v := tick(agentv1.TickReason_TICK_REASON_RECHECK, "recheck_due", it)
			v.Recheck = it
			return v, true
		}
	}
	return Verdict{}, false
}

// triggered returns the first item that was triggered after since and is not runnable, the
// item in focus before others; nil if there is none. A zero since is any time.
func triggered(f Facts, since time.Time) *workv1.WorkItem {
	q := f.Queue
	if cur := q.GetCurrent(); cur.GetReadiness() != workv1.Readiness_READINESS_RUNNABLE && unseen(cur, f.Agent, since) {
		return cur
	}
	for _, it := range q.GetTriggeredBlocked() {
		if unseen(it, f.Agent, since) {
			return it
		}
	}
	return nil
}

// unseen reports whether an item was triggered after since by something that no completed turn
// has shown. A zero since is any time. The work plane consumes the end of a turn later than
// the agent plane ends it, so the triggers that the latest turns showed are read from the
// agent's facts; otherwise every review would be followed by another one that finds nothing
// (SPEC P7).
func unseen(it *workv1.WorkItem, a *agentv1.AgentFacts, since time.Time) bool {
	for _, w := range it.GetWaits() {
		if !since.IsZero() && !w.GetLastTriggeredAt().AsTime().After(since) {
			continue
		}
		seen := w.GetConsumedCount()
		for _, shown := range a.GetShownWaits() {
			replaced := w.GetReplacesWaitId() != "" && shown.GetWaitId() == w.GetReplacesWaitId()
			if replaced || shown.GetWaitId() == w.GetWaitId() {
				seen = max(seen, shown.GetTriggerCount())
			}
		}
		if w.GetTriggerCount() > seen {
			return true
		}
	}
	return false
}

// tick returns the verdict of a tick about an item.
func tick(why agentv1.TickReason, reason string, it *workv1.WorkItem) Verdict {
	return Verdict{
		Action: ActionTick, Tick: why, Reason: reason, ItemID: it.GetWorkItemId(), Revision: it.GetRevision(),
	}
}

// idle returns the verdict to do nothing because no item of a queue can be worked on.
func idle(q *workv1.GetWorkQueueResponse) Verdict {
	n := q.GetCounts()
	switch {
	case n.GetOpen() == 0 && n.GetCompleted() == 0:
		return Verdict{Action: ActionIdle, Reason: "no_work_items"}
	case n.GetOpen() == 0:
		return Verdict{Action: ActionIdle, Reason: "all_completed"}
	case n.GetWaitingForOperator() == n.GetOpen():
		return Verdict{Action: ActionIdle, Reason: "waiting_for_operator"}
	}
	return Verdict{Action: ActionIdle, Reason: "all_waiting"}
}
