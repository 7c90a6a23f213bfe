package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/staletick"
)

// shownDecisions is how many recorded decisions Explain returns; ListDecisions has the
// others.
const shownDecisions = 10

// Explain returns what would be decided from the current facts, and why. It changes nothing
// (SPEC D6).
func (s *Service) Explain(ctx context.Context, req *schedulerv1.ExplainRequest) (*schedulerv1.ExplainResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.Name("agent_id", req.GetAgentId()); err != nil {
		return nil, err
	}
	if err := rpc.CheckAgent(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	f, err := s.facts(ctx, plane.KeyOf(actor.Namespace, req.GetAgentId()), false)
	if err != nil {
		return nil, err
	}
	waits, err := s.waits(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	recorded, err := s.deps.Agents.ListDecisions(ctx, &agentv1.ListDecisionsRequest{
		AgentId:  req.GetAgentId(),
		PageSize: shownDecisions,
	})
	if err != nil {
		return nil, err
	}
	f.StaleTick = staletick.Reason(f.Agent.GetHeadTick(), staletick.Facts{
		WakePending: f.Agent.GetWakeHint(), WakeWaits: f.Agent.GetWakeWaitIds(), OwnTriggered: ownTriggered(waits),
		LastTurnID: f.Agent.GetAgent().GetLastTurnId(), Queue: f.Queue, Stalled: f.Agent.GetStalledItems(),
	})
	if f.Agent.GetWakeHint() && len(f.Agent.GetWakeWaitIds()) > 0 && !ownTriggered(waits) {
		// The tick for it would be dropped: the waits are over, or a turn has shown them.
		f.Agent.WakeHint = false
	}
	own := ownWaits(waits)
	resp := account(f)
	resp.Facts = append(resp.Facts, &schedulerv1.Fact{Name: "own_waits", Value: strconv.Itoa(len(own))})
	if resp.GetVerdict().GetAction() == ActionIdle {
		resp.Verdict.Explanation += alsoWaits(own, f)
	}
	for _, d := range recorded.GetDecisions() {
		resp.Recent = append(resp.Recent, &schedulerv1.Verdict{
			Action: d.GetAction(), TickReason: d.GetTickReason(), Reason: d.GetReason(), WorkItemId: d.GetWorkItemId(),
			WorkItemRevision: d.GetWorkItemRevision(), Explanation: d.GetExplanation(), DecidedAt: d.GetDecidedAt(),
		})
	}
	return resp, nil
}

// account decides about an agent, and returns the decision with the facts and candidates that
// it rests on.
func account(f Facts) *schedulerv1.ExplainResponse {
	v := Plan(f)
	return &schedulerv1.ExplainResponse{
		AgentId: f.Agent.GetAgent().GetAgentId(), Facts: factList(f), Candidates: candidates(v, f),
		Verdict: &schedulerv1.Verdict{
			Action: v.Action, TickReason: v.Tick, Reason: v.Reason, WorkItemId: v.ItemID,
			WorkItemRevision: v.Revision, Explanation: sentence(v, f), DecidedAt: timestamppb.New(f.Now),
		},
	}
}

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
	left := t.GetLeaseExpiresAt().AsTime().Sub(f.Now)
	if left <= 0 {
		return text + ", lease is over"
	}
	return text + ", lease ends in " + span(left)
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
	switch ahead, waiting := f.Agent.GetReadyAhead(), f.Agent.GetRunnersWaiting(); {
	case waiting > 0:
		return what + "; a runner is about to take the turn"
	case ahead >= 1000:
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
	n := f.Queue.GetCounts().GetOpen()
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

// candidates returns the items that the work queue shows, completed ones too, each with why it was
// chosen or not. An item that is chosen for its reminder is among them even if the queue, which shows
// only the first of each class, does not show it.
func candidates(v Verdict, f Facts) []*schedulerv1.Candidate {
	var out []*schedulerv1.Candidate
	all := items(f.Queue)
	chosen := func(it *workv1.WorkItem) bool { return it.GetWorkItemId() == v.ItemID }
	if !slices.ContainsFunc(all, chosen) {
		if i := slices.IndexFunc(f.Queue.GetRechecks(), chosen); i >= 0 {
			all = append(all, f.Queue.GetRechecks()[i])
		}
	}
	for _, it := range all {
		c := &schedulerv1.Candidate{
			WorkItemId: it.GetWorkItemId(), Objective: it.GetObjective(), Revision: it.GetRevision(),
			ReasonCode:      it.GetReasonCode(),
			CandidateClass:  strings.ToLower(strings.TrimPrefix(it.GetCandidateClass().String(), "CANDIDATE_CLASS_")),
			SchedulingState: strings.ToLower(strings.TrimPrefix(it.GetSchedulingState().String(), "SCHEDULING_STATE_")),
			Chosen:          v.ItemID == it.GetWorkItemId() && v.Action == ActionTick,
		}
		if it.GetReadiness() != workv1.Readiness_READINESS_COMPLETED &&
			it.GetReadiness() != workv1.Readiness_READINESS_RUNNABLE {
			c.WaitingFor = waitsFor(it, f)
		}
		c.Why = verdictOn(it, c, v, f)
		out = append(out, c)
	}
	return out
}

// instead says, by the rule that decided, why a runnable item was not chosen.
var instead = map[string]string{
	"agent_deleted":     "the agent is deleted",
	"agent_stopped":     "the agent is stopped",
	"agent_paused":      "the agent is paused",
	"run_open":          "a turn is running; what comes next is decided when it has ended",
	"message_queued":    "a queued message comes first",
	"current_runnable":  "the item in focus comes first",
	"triggered_blocked": "what was triggered comes first",
	"agent_triggered":   "what woke the agent itself comes first",
	"queued_runnable":   "it was updated later than the one chosen",
	"recheck_due":       "the reminder comes first",
	"no_progress":       "turns about it made no progress; new input or a change lets it go on",
}

// verdictOn returns why an item was chosen or not.
func verdictOn(it *workv1.WorkItem, c *schedulerv1.Candidate, v Verdict, f Facts) string {
	why := instead[v.Reason]
	switch {
	case c.GetChosen():
		return "chosen: " + v.Reason
	case staletick.Stalled(it, f.Agent.GetStalledItems()):
		return fmt.Sprintf("not chosen: %d turns in a row about it made no progress; a message or a change of it "+
			"lets it go on", stalledTurns(it.GetWorkItemId(), f))
	case it.GetReadiness() == workv1.Readiness_READINESS_COMPLETED:
		return "not chosen: it is completed"
	case c.GetWaitingFor() == "" && why != "":
		return "not chosen: " + why
	case c.GetWaitingFor() == "":
		return "not chosen: " + v.Reason
	case unseen(it, f.Agent, time.Time{}) && why != "":
		return "not chosen: it was triggered, but " + why
	case it.GetHasTriggeredWaits() && !unseen(it, f.Agent, time.Time{}):
		return "not chosen: it " + c.GetWaitingFor() + ", and a turn was shown what came"
	}
	return "not chosen: it " + c.GetWaitingFor()
}

// factList returns the facts of a decision by name, for people.
func factList(f Facts) []*schedulerv1.Fact {
	a, n := f.Agent.GetAgent(), f.Queue.GetCounts()
	fact := func(name string, value any) *schedulerv1.Fact {
		return &schedulerv1.Fact{Name: name, Value: fmt.Sprint(value)}
	}
	list := []*schedulerv1.Fact{
		fact("control", strings.ToLower(strings.TrimPrefix(a.GetControl().String(), "CONTROL_"))),
		fact("open_run", a.GetCurrentRunId()),
		fact("queued_messages", f.Agent.GetQueued()),
		fact("tick_pending", f.Agent.GetTickPending()),
		fact("stale_tick", f.StaleTick),
		fact("wake_hint", f.Agent.GetWakeHint()),
		fact("idle_turns", a.GetIdleTurns()),
		fact("failed_ticks", f.Agent.GetFailedTicks()),
		fact("last_turn", a.GetLastTurnId()),
		fact("current_work_item", f.Queue.GetCurrent().GetWorkItemId()),
		fact("open_items", n.GetOpen()),
		fact("triggered_blocked", n.GetTriggeredBlocked()),
		fact("queued_runnable", n.GetQueuedRunnable()),
		fact("waiting_for_operator", n.GetWaitingForOperator()),
		fact("blocked", n.GetBlocked()),
		fact("completed", n.GetCompleted()),
		fact("runners_waiting", f.Agent.GetRunnersWaiting()),
		fact("agents_ahead", f.Agent.GetReadyAhead()),
		fact("agent_revision", f.Agent.GetFactsRevision()),
		fact("work_revision", f.Queue.GetRevision()),
	}
	next := ""
	for _, it := range f.Queue.GetRechecks() {
		next = it.GetRecheckAt().AsTime().UTC().Format(time.RFC3339)
		break
	}
	return append(list, fact("next_recheck", next))
}

// items returns the items that a queue shows: the one in focus first, then class by class.
func items(q *workv1.GetWorkQueueResponse) []*workv1.WorkItem {
	var all []*workv1.WorkItem
	if q.GetCurrent() != nil {
		all = append(all, q.GetCurrent())
	}
	for _, class := range [][]*workv1.WorkItem{
		q.GetTriggeredBlocked(), q.GetQueuedRunnable(), q.GetPassedOver(),
		q.GetWaitingForOperator(), q.GetBlocked(), q.GetCompletedRecent(),
	} {
		all = append(all, class...)
	}
	return all
}

// waitingItems returns the open items that a queue shows and that are not runnable.
func waitingItems(q *workv1.GetWorkQueueResponse) []*workv1.WorkItem {
	var open []*workv1.WorkItem
	for _, it := range items(q) {
		if it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_OPEN &&
			it.GetReadiness() != workv1.Readiness_READINESS_RUNNABLE {
			open = append(open, it)
		}
	}
	return open
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
	const most = 60
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most-1]) + "…"
}

// since returns since when something is so, as a clause.
func since(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case t.IsZero() || t.Unix() == 0:
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
