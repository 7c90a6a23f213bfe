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

	// Read what a decision rests on.
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

	// Leave out what AcquireTurn would drop.
	f.StaleTick = staletick.Reason(f.Agent.GetHeadTick(), staletick.Facts{
		WakePending: f.Agent.GetWakeHint(), WakeWaits: f.Agent.GetWakeWaitIds(), OwnTriggered: ownTriggered(waits),
		LastTurnID: f.Agent.GetAgent().GetLastTurnId(), Queue: f.Queue, Stalled: f.Agent.GetStalledItems(),
	})
	if f.Agent.GetWakeHint() && len(f.Agent.GetWakeWaitIds()) > 0 && !ownTriggered(waits) {
		f.Agent.WakeHint = false // the waits are over, or a turn has shown them
	}

	// Decide, and add what the agent itself waits for and what was decided before.
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

// candidates returns the items that the work queue shows, completed ones too, each with why it was
// chosen or not. An item that is chosen for its reminder is among them even if the queue, which shows
// only the first of each class, does not show it.
func candidates(v Verdict, f Facts) []*schedulerv1.Candidate {
	shown := items(f.Queue)
	isChosen := func(it *workv1.WorkItem) bool { return it.GetWorkItemId() == v.ItemID }
	if !slices.ContainsFunc(shown, isChosen) {
		if i := slices.IndexFunc(f.Queue.GetRechecks(), isChosen); i >= 0 {
			shown = append(shown, f.Queue.GetRechecks()[i])
		}
	}

	var out []*schedulerv1.Candidate
	for _, it := range shown {
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
	if reminders := f.Queue.GetRechecks(); len(reminders) > 0 {
		next = reminders[0].GetRecheckAt().AsTime().UTC().Format(time.RFC3339)
	}
	return append(list, fact("next_recheck", next))
}

// items returns the items that a queue shows: the one in focus first, then class by class.
func items(q *workv1.GetWorkQueueResponse) []*workv1.WorkItem {
	var shown []*workv1.WorkItem
	if q.GetCurrent() != nil {
		shown = append(shown, q.GetCurrent())
	}
	for _, class := range [][]*workv1.WorkItem{
		q.GetTriggeredBlocked(), q.GetQueuedRunnable(), q.GetPassedOver(),
		q.GetWaitingForOperator(), q.GetBlocked(), q.GetCompletedRecent(),
	} {
		shown = append(shown, class...)
	}
	return shown
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
