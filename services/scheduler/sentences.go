package scheduler

import (
	"fmt"
	"strings"
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// sentence explains a verdict to a person: what, why, since when, and what would change it.
// The explanation that is recorded with a decision is this text too.
func sentence(v Verdict, f Facts) string {
	a := f.Agent.GetAgent()
	switch v.Reason {
	case "agent_deleted":
		return "nothing: the agent is deleted, or about to be"
	case "agent_stopped":
		return "nothing: " + controlled("stopped", a, f.Now) + "; StartAgent lets it go on"
	case "agent_paused":
		return "nothing: " + controlled("paused", a, f.Now) + "; ResumeAgent lets it go on"
	case "run_open":
		return "nothing: " + openRun(f)
	case "message_queued":
		return "dispatch: " + inLine(f)
	case "current_runnable":
		return "continue_current: the item in focus is runnable: " + named(v.ItemID, f)
	case "triggered_blocked":
		return "review_triggered: something came for an item that waits, which the agent must look at: " +
			named(v.ItemID, f)
	case "agent_triggered":
		return fmt.Sprintf("wake_hint: the agent itself was woken by %s %s", f.Agent.GetWakeHintSource(),
			since(f.Agent.GetWokenAt().AsTime(), f.Now))
	case "queued_runnable":
		focus := "nothing runnable is in focus"
		if cur := f.Queue.GetCurrent(); cur.GetReadiness() == workv1.Readiness_READINESS_RUNNABLE {
			focus = "turns about the item in focus made no progress"
		}
		return fmt.Sprintf("pick_queued: %s; of %s the first is %s%s", focus,
			plural(f.Queue.GetCounts().GetQueuedRunnable(), "runnable item", "runnable items"), named(v.ItemID, f),
			resumed(v.ItemID, f))
	case "recheck_due":
		return "recheck: the reminder is due for " + named(v.ItemID, f)
	case "no_progress":
		if n := f.Agent.GetFailedTicks(); n >= maxFailedTicks {
			return fmt.Sprintf("idle: no_progress after %d ticks in a row whose turns failed, although there is "+
				"work: %s; fix the runner and send a message to go on", n, stillThere(v, f))
		}
		return fmt.Sprintf("idle: no_progress after %d turns in a row that changed nothing and had no new effect, "+
			"although there is work: %s; send a message or change the item to go on",
			max(a.GetIdleTurns(), stalledTurns(v.ItemID, f)), stillThere(v, f))
	case "no_work_items":
		return "idle: there are no work items and no messages"
	case "all_completed":
		if n := f.Queue.GetCounts().GetCompleted(); n > 1 {
			return fmt.Sprintf("idle: all %d work items are completed and no message is queued", n)
		}
		return "idle: the only work item is completed and no message is queued"
	}
	return "idle: " + allWait(f)
}

// resumed returns which wait ended so that a queued item can go on, as a clause of a sentence;
// empty if the item did not wait.
func resumed(itemID string, f Facts) string {
	for _, it := range f.Queue.GetQueuedRunnable() {
		if w := it.GetResumed().GetWait(); it.GetWorkItemId() == itemID && w != nil {
			return fmt.Sprintf(", whose wait for %s is over: %s", awaited(w.GetKind(), w.GetResource()), w.GetReason())
		}
	}
	return ""
}

// stalledTurns returns how many turns in a row about an item made no progress, 0 if it is not
// stalled.
func stalledTurns(itemID string, f Facts) int32 {
	for _, s := range f.Agent.GetStalledItems() {
		if s.GetWorkItemId() == itemID {
			return s.GetTurns()
		}
	}
	return 0
}

// controlled returns that the agent was stopped or paused, as how says, by whom, since when
// and why.
func controlled(how string, a *agentv1.Agent, now time.Time) string {
	text := "the agent is " + how
	if a.GetControlBy() != "" {
		text += " by " + a.GetControlBy()
	}
	if a.GetControlAt() != nil {
		text += " " + since(a.GetControlAt().AsTime(), now)
	}
	if a.GetControlReason() != "" {
		text += " (" + a.GetControlReason() + ")"
	}
	return text
}

// openRun returns which run the agent has open: its turn, runner and lease.
func openRun(f Facts) string {
	t := f.Agent.GetOpenTurn()
	if t == nil {
		return fmt.Sprintf("run %s is open, and an agent has one run at a time", f.Agent.GetAgent().GetCurrentRunId())
	}
	runner := t.GetRunnerId()
	if runner == "" {
		runner = "of " + t.GetAcquiredBy()
	}
	text := fmt.Sprintf("running turn %s %s, round %d, runner %s", t.GetTurnId(),
		since(t.GetStartedAt().AsTime(), f.Now), t.GetRounds(), runner)
	if t.GetLeaseExpiresAt() == nil {
		return text
	}
	remaining := t.GetLeaseExpiresAt().AsTime().Sub(f.Now)
	if remaining <= 0 {
		return text + ", lease is over"
	}
	return text + ", lease ends in " + span(remaining)
}

// inLine returns what is queued, and what it waits for: a runner, or other agents that come
// first.
func inLine(f Facts) string {
	what := plural(f.Agent.GetQueued(), "message is", "messages are") + " queued, the first " +
		since(f.Agent.GetHeadQueuedAt().AsTime(), f.Now)
	if f.Agent.GetTickPending() && f.Agent.GetQueuedInput() == 0 {
		// No input is queued, only the scheduler's own tick.
		what = "a tick is queued " + since(f.Agent.GetHeadQueuedAt().AsTime(), f.Now)
		if last := f.Agent.GetLastDecision(); last.GetAction() == ActionTick {
			what += " (" + tickName(last.GetTickReason()) + ")"
		}
	}

	// It waits for a runner, and for the agents that runners take before it.
	ahead := f.Agent.GetReadyAhead()
	switch {
	case f.Agent.GetRunnersWaiting() > 0:
		return what + "; a runner is about to take the turn"
	case ahead >= 1000: // the agent plane counts no further
		return what + "; no runner waits, and 1000 or more agents have been ready for longer"
	case ahead > 0:
		return what + "; no runner waits, and " + plural(ahead, "agent has", "agents have") + " been ready for longer"
	}
	return what + "; no runner waits: the next one that asks gets the turn"
}

// stillThere returns the work that an idle agent has: an item, or what woke the agent.
func stillThere(v Verdict, f Facts) string {
	if v.ItemID == "" {
		return "the agent was woken by " + f.Agent.GetWakeHintSource()
	}
	return named(v.ItemID, f)
}

// allWait returns why none of the open items can be worked on; it names the first.
func allWait(f Facts) string {
	open := waitingItems(f.Queue)
	n := f.Queue.GetCounts().GetOpen() // also those that the queue does not show
	switch {
	case len(open) == 0:
		return "nothing is runnable"
	case n <= 1:
		return "the only open item " + waitsFor(open[0], f)
	}
	return fmt.Sprintf("none of %d open items is runnable; %s %s", n, named(open[0].GetWorkItemId(), f),
		waitsFor(open[0], f))
}

// waitsFor returns what an item that is not runnable waits for, as a clause; for a wait also
// since when.
func waitsFor(it *workv1.WorkItem, f Facts) string {
	for _, w := range it.GetWaits() {
		if w.GetMode() != waitingv1.WaitMode_WAIT_MODE_WAIT {
			continue
		}
		return "waits for " + waited(w, f)
	}
	switch {
	case it.GetBlockedBy() != "":
		return "is blocked: " + it.GetBlockedBy()
	case it.GetPlanStatus() == workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT:
		return "needs input from an operator before its plan can be settled"
	}
	return "is not runnable (" + it.GetReasonCode() + ")"
}

// awaited returns what a wait of a kind is for.
func awaited(kind waitingv1.WaitKind, resource string) string {
	switch kind {
	case waitingv1.WaitKind_WAIT_KIND_TASK:
		return "task " + resource
	case waitingv1.WaitKind_WAIT_KIND_EXTERNAL:
		if resource != "" {
			return "trigger " + resource
		}
		return "any trigger of its own"
	case waitingv1.WaitKind_WAIT_KIND_TIMER:
		return "a time"
	case waitingv1.WaitKind_WAIT_KIND_OPERATOR:
		return "an operator's message"
	case waitingv1.WaitKind_WAIT_KIND_UNSPECIFIED, waitingv1.WaitKind_WAIT_KIND_SYSTEM:
	}
	return "the system"
}

// named returns an item's id with its objective, and the id alone if the queue does not show
// the item.
func named(id string, f Facts) string {
	for _, it := range append(items(f.Queue), f.Queue.GetRechecks()...) {
		if it.GetWorkItemId() == id {
			return fmt.Sprintf("%s (%q)", id, short(it.GetObjective()))
		}
	}
	return id
}

// actionName returns the name of an action in lower case, such as tick.
func actionName(a agentv1.DecisionAction) string {
	return strings.ToLower(strings.TrimPrefix(a.String(), "DECISION_ACTION_"))
}

// tickName returns the name of a tick in lower case, such as recheck; empty for the
// unspecified one.
func tickName(t agentv1.TickReason) string {
	if t == agentv1.TickReason_TICK_REASON_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(t.String(), "TICK_REASON_"))
}

// plural returns n with the word for one or for more.
func plural(n int32, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", more)
}

// short returns at most 60 characters of a text, and marks a cut.
func short(s string) string {
	const maxRunes = 60
	runes := []rune(s)
	if len(runes) <= maxRunes {
		return s
	}
	return string(runes[:maxRunes-1]) + "…"
}

// since returns since when something is so, as a clause.
func since(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case t.IsZero() || t.Unix() == 0: // the epoch is what AsTime returns for no timestamp
		return "since an unknown time"
	case d < time.Second:
		return "since just now"
	}
	return "since " + span(d)
}

// span writes a duration for people.
func span(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(max(d, time.Second).Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
