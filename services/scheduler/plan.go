package scheduler

import (
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// maxIdleTurns is how many turns in a row may change nothing before the agent
// is left alone until something new comes (SPEC D4).
const maxIdleTurns = 3

// Actions of a decision.
const (
	ActionNothing  = agentv1.DecisionAction_DECISION_ACTION_NOTHING
	ActionDispatch = agentv1.DecisionAction_DECISION_ACTION_DISPATCH
	ActionTick     = agentv1.DecisionAction_DECISION_ACTION_TICK
	ActionIdle     = agentv1.DecisionAction_DECISION_ACTION_IDLE
)

// Facts is all that a decision rests on.
type Facts struct {
	Agent *agentv1.AgentFacts
	Queue *workv1.GetWorkQueueResponse
	Now   time.Time
}

// Verdict is what Plan makes of them.
type Verdict struct {
	Action   agentv1.DecisionAction
	Tick     agentv1.TickReason
	Reason   string // the rule that decided
	ItemID   string
	Revision int64
	// Recheck is set for a recheck tick: the reminder that is to be marked as given.
	Recheck *workv1.WorkItem
}

// Plan decides for one agent (SPEC D2). It is pure: the same facts give the
// same verdict, whoever asks, whenever, and however often.
func Plan(f Facts) Verdict {
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
	case f.Agent.GetQueued() > 0:
		return Verdict{Action: ActionDispatch, Reason: "message_queued"}
	}

	v := candidate(f)
	if v.Action != ActionTick {
		return v
	}
	since := f.Agent.GetLastTurnStartedAt().AsTime()
	switch {
	case f.Agent.GetFailedTicks() >= maxIdleTurns:
		// Turns that fail tell the agent nothing, so what was not told stays news
		// for ever. Only what came after the last attempt is worth another.
		if n, ok := news(f, since); ok {
			return n
		}
	case a.GetIdleTurns() >= maxIdleTurns:
		// Turns that change nothing are not repeated for ever, but each of them
		// tells what it was about, so the news come to an end by themselves.
		if n, ok := news(f, time.Time{}); ok {
			return n
		}
	default:
		return v
	}
	// What somebody else changed since the last turn began is new as well.
	if at := f.Queue.GetChangedAt(); at != nil && at.AsTime().After(since) {
		return v
	}
	return Verdict{Action: ActionIdle, Reason: "no_progress", ItemID: v.ItemID, Revision: v.Revision}
}

// candidate is the first of the tick rules that holds, else idle.
func candidate(f Facts) Verdict {
	q := f.Queue
	if cur := q.GetCurrent(); cur.GetReadiness() == workv1.Readiness_READINESS_RUNNABLE {
		return tick(agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT, "current_runnable", cur)
	}
	if v, ok := came(f, time.Time{}); ok {
		return v
	}
	if len(q.GetQueuedRunnable()) > 0 {
		return tick(agentv1.TickReason_TICK_REASON_PICK_QUEUED, "queued_runnable", q.GetQueuedRunnable()[0])
	}
	if v, ok := reminder(f); ok {
		return v
	}
	return idle(q)
}

// news is the first tick that tells the agent something that came after since.
// A reminder is marked as given with its tick, so it is never told twice.
func news(f Facts, since time.Time) (Verdict, bool) {
	if v, ok := came(f, since); ok {
		return v, true
	}
	return reminder(f)
}

// came is the tick for what came from outside, for an item or for the agent.
func came(f Facts, since time.Time) (Verdict, bool) {
	if t := triggered(f, since); t != nil {
		return tick(agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED, "triggered_blocked", t), true
	}
	if f.Agent.GetWakeHint() && (since.IsZero() || f.Agent.GetWokenAt().AsTime().After(since)) {
		return Verdict{Action: ActionTick, Tick: agentv1.TickReason_TICK_REASON_WAKE_HINT, Reason: "agent_triggered"}, true
	}
	return Verdict{}, false
}

// reminder is the tick for the first recheck that is due.
func reminder(f Facts) (Verdict, bool) {
	for _, it := range f.Queue.GetRechecks() {
		if !it.GetRecheckAt().AsTime().After(f.Now) {
			v := tick(agentv1.TickReason_TICK_REASON_RECHECK, "recheck_due", it)
			v.Recheck = it
			return v, true
		}
	}
	return Verdict{}, false
}

// triggered is the first item that was triggered after since and cannot go on
// by itself. An item in focus for inspection counts as well.
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

// unseen says whether something came for an item that no completed turn was
// shown. The work plane hears of a turn's end later than the agent plane ends
// it; without a look at the turn itself every review would be followed by
// another one that finds nothing (SPEC P7).
func unseen(it *workv1.WorkItem, a *agentv1.AgentFacts, since time.Time) bool {
	for _, w := range it.GetWaits() {
		if !since.IsZero() && !w.GetLastTriggeredAt().AsTime().After(since) {
			continue
		}
		seen := w.GetConsumedCount()
		for _, sw := range a.GetShownWaits() {
			if sw.GetWaitId() == w.GetWaitId() || w.GetReplacesWaitId() != "" && sw.GetWaitId() == w.GetReplacesWaitId() {
				seen = max(seen, sw.GetTriggerCount())
			}
		}
		if w.GetTriggerCount() > seen {
			return true
		}
	}
	return false
}

func tick(why agentv1.TickReason, reason string, it *workv1.WorkItem) Verdict {
	return Verdict{Action: ActionTick, Tick: why, Reason: reason, ItemID: it.GetWorkItemId(), Revision: it.GetRevision()}
}

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
