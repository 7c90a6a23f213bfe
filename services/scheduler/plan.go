package scheduler

import (
	"fmt"
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// maxIdleTurns is how many turns in a row may change nothing before the agent
// is left alone until something new comes (SPEC D4).
const maxIdleTurns = 3

// Actions of a decision.
const (
	ActionNothing  = "nothing"
	ActionDispatch = "dispatch"
	ActionTick     = "tick"
	ActionIdle     = "idle"
)

// Facts is all that a decision rests on.
type Facts struct {
	Agent *agentv1.AgentFacts
	Queue *workv1.GetWorkQueueResponse
	Now   time.Time
}

// Verdict is what Plan makes of them.
type Verdict struct {
	Action   string
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
	if a.GetIdleTurns() < maxIdleTurns || v.Action != ActionTick {
		return v
	}
	// Turns that change nothing are not repeated for ever. What they were not
	// told of is still worth a turn: a trigger, a wake, a reminder, and whatever
	// somebody else changed since the last one began.
	if n, ok := news(f); ok {
		return n
	}
	if at := f.Queue.GetChangedAt(); at != nil && at.AsTime().After(f.Agent.GetLastTurnStartedAt().AsTime()) {
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
	if v, ok := came(f); ok {
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

// news is the first tick that tells the agent something new.
func news(f Facts) (Verdict, bool) {
	if v, ok := came(f); ok {
		return v, true
	}
	return reminder(f)
}

// came is the tick for what came from outside, for an item or for the agent.
func came(f Facts) (Verdict, bool) {
	if t := triggered(f); t != nil {
		return tick(agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED, "triggered_blocked", t), true
	}
	if f.Agent.GetWakeHint() {
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

// triggered is the first item that was triggered and cannot go on by itself.
// An item in focus for inspection counts as well.
func triggered(f Facts) *workv1.WorkItem {
	q := f.Queue
	if cur := q.GetCurrent(); cur.GetReadiness() != workv1.Readiness_READINESS_RUNNABLE && unseen(cur, f.Agent) {
		return cur
	}
	for _, it := range q.GetTriggeredBlocked() {
		if unseen(it, f.Agent) {
			return it
		}
	}
	return nil
}

// unseen says whether something came for an item that no completed turn was
// shown. The work plane hears of a turn's end later than the agent plane ends
// it; without a look at the turn itself every review would be followed by
// another one that finds nothing (SPEC P7).
func unseen(it *workv1.WorkItem, a *agentv1.AgentFacts) bool {
	for _, w := range it.GetWaits() {
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

// explain says a verdict in one sentence (SPEC D6).
func explain(v Verdict, f Facts) string {
	a := f.Agent.GetAgent()
	name := func(id string) string {
		for _, it := range items(f.Queue) {
			if it.GetWorkItemId() == id {
				return fmt.Sprintf("%s (%q)", id, short(it.GetObjective()))
			}
		}
		return id
	}
	switch v.Reason {
	case "agent_deleted":
		return "nothing: the agent is deleted"
	case "agent_stopped":
		return "nothing: an operator stopped the agent; StartAgent lets it go on"
	case "agent_paused":
		return "nothing: the agent is paused; ResumeAgent lets it go on"
	case "run_open":
		return fmt.Sprintf("nothing: run %s is open, and an agent has one run at a time", a.GetCurrentRunId())
	case "message_queued":
		return fmt.Sprintf("dispatch: %d message(s) are queued since %s; the next runner that asks gets the turn", f.Agent.GetQueued(), ago(f.Agent.GetHeadQueuedAt().AsTime(), f.Now))
	case "current_runnable":
		return "continue_current: the item in focus is runnable: " + name(v.ItemID)
	case "triggered_blocked":
		return "review_triggered: something came for an item that waits, which the agent must look at: " + name(v.ItemID)
	case "agent_triggered":
		return fmt.Sprintf("wake_hint: the agent itself was triggered by %s", f.Agent.GetWakeHintSource())
	case "queued_runnable":
		return fmt.Sprintf("pick_queued: nothing runnable is in focus and %d item(s) are runnable, first %s", f.Queue.GetCounts().GetQueuedRunnable(), name(v.ItemID))
	case "recheck_due":
		return "recheck: the reminder is due for " + name(v.ItemID)
	case "no_progress":
		return fmt.Sprintf("idle: %d turns in a row changed nothing, although %s is runnable; new input wakes the agent", a.GetIdleTurns(), name(v.ItemID))
	case "no_work_items":
		return "idle: there are no work items and no messages"
	case "all_completed":
		return fmt.Sprintf("idle: all %d work items are completed and no message is queued", f.Queue.GetCounts().GetCompleted())
	}
	open := waitingItems(f.Queue)
	if len(open) == 0 {
		return "idle: nothing is runnable"
	}
	text := fmt.Sprintf("idle: the only open item %s", waitsFor(open[0], f.Now))
	if n := f.Queue.GetCounts().GetOpen(); n > 1 {
		text = fmt.Sprintf("idle: none of %d open items is runnable; %s %s", n, name(open[0].GetWorkItemId()), waitsFor(open[0], f.Now))
	}
	return text
}

// waitsFor says what an item waits for, and since when.
func waitsFor(it *workv1.WorkItem, now time.Time) string {
	for _, w := range it.GetWaits() {
		if w.GetMode() != workv1.WaitMode_WAIT_MODE_WAIT {
			continue
		}
		since := ago(w.GetCreatedAt().AsTime(), now)
		switch w.GetKind() {
		case workv1.WaitKind_WAIT_KIND_TASK:
			return fmt.Sprintf("waits for task %s since %s: %s", w.GetResource(), since, w.GetReason())
		case workv1.WaitKind_WAIT_KIND_EXTERNAL:
			what := "any trigger of its own"
			if w.GetResource() != "" {
				what = "trigger " + w.GetResource()
			}
			return fmt.Sprintf("waits for %s since %s: %s", what, since, w.GetReason())
		case workv1.WaitKind_WAIT_KIND_TIMER:
			return fmt.Sprintf("waits for a time since %s: %s", since, w.GetReason())
		case workv1.WaitKind_WAIT_KIND_OPERATOR:
			return fmt.Sprintf("waits for an operator's message since %s: %s", since, w.GetReason())
		case workv1.WaitKind_WAIT_KIND_UNSPECIFIED, workv1.WaitKind_WAIT_KIND_SYSTEM:
			return fmt.Sprintf("waits for the system since %s: %s", since, w.GetReason())
		}
	}
	switch {
	case it.GetBlockedBy() != "":
		return "is blocked: " + it.GetBlockedBy()
	case it.GetPlanStatus() == workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT:
		return "needs input from an operator before its plan can be settled"
	}
	return "is not runnable (" + it.GetReasonCode() + ")"
}

func items(q *workv1.GetWorkQueueResponse) []*workv1.WorkItem {
	var all []*workv1.WorkItem
	if q.GetCurrent() != nil {
		all = append(all, q.GetCurrent())
	}
	for _, class := range [][]*workv1.WorkItem{q.GetTriggeredBlocked(), q.GetQueuedRunnable(), q.GetWaitingForOperator(), q.GetBlocked(), q.GetCompletedRecent()} {
		all = append(all, class...)
	}
	return all
}

func waitingItems(q *workv1.GetWorkQueueResponse) []*workv1.WorkItem {
	var open []*workv1.WorkItem
	for _, it := range items(q) {
		if it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_OPEN && it.GetReadiness() != workv1.Readiness_READINESS_RUNNABLE {
			open = append(open, it)
		}
	}
	return open
}

func short(s string) string {
	const most = 60
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most-1]) + "…"
}

// ago is a duration for people.
func ago(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case t.IsZero() || t.Unix() == 0:
		return "an unknown time"
	case d < time.Second:
		return "just now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}
