package agent

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// A tick is dropped exactly when what it is about is no longer true (SPEC D4,
// upstream #2511).
func TestD4_StaleTicks(t *testing.T) {
	it := func(r workv1.Readiness, triggered bool) *workv1.WorkItem {
		return &workv1.WorkItem{WorkItemId: "wi_1", Readiness: r, HasTriggeredWaits: triggered}
	}
	const runnable, blocked = workv1.Readiness_READINESS_RUNNABLE, workv1.Readiness_READINESS_BLOCKED
	for name, c := range map[string]struct {
		reason agentv1.TickReason
		queue  *workv1.GetWorkQueueResponse
		stale  bool
	}{
		"no tick at all":          {0, &workv1.GetWorkQueueResponse{}, false},
		"the current goes on":     {continueCurrent, &workv1.GetWorkQueueResponse{Current: it(runnable, false)}, false},
		"the current was blocked": {continueCurrent, &workv1.GetWorkQueueResponse{Current: it(blocked, false)}, true},
		"another is current":      {continueCurrent, &workv1.GetWorkQueueResponse{Current: &workv1.WorkItem{WorkItemId: "wi_2", Readiness: runnable}}, true},
		"nothing is current":      {continueCurrent, &workv1.GetWorkQueueResponse{}, true},
		"the item is queued":      {agentv1.TickReason_TICK_REASON_PICK_QUEUED, &workv1.GetWorkQueueResponse{QueuedRunnable: []*workv1.WorkItem{it(runnable, false)}}, false},
		"only another is queued":  {agentv1.TickReason_TICK_REASON_PICK_QUEUED, &workv1.GetWorkQueueResponse{QueuedRunnable: []*workv1.WorkItem{{WorkItemId: "wi_2"}}}, true},
		"another was picked":      {agentv1.TickReason_TICK_REASON_PICK_QUEUED, &workv1.GetWorkQueueResponse{Current: &workv1.WorkItem{WorkItemId: "wi_2", Readiness: runnable}, QueuedRunnable: []*workv1.WorkItem{it(runnable, false)}}, true},
		"none is any more":        {agentv1.TickReason_TICK_REASON_PICK_QUEUED, &workv1.GetWorkQueueResponse{}, true},
		"a trigger is there":      {agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED, &workv1.GetWorkQueueResponse{TriggeredBlocked: []*workv1.WorkItem{it(blocked, true)}}, false},
		"one of the current":      {agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED, &workv1.GetWorkQueueResponse{Current: it(blocked, true)}, false},
		"it was looked at":        {agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED, &workv1.GetWorkQueueResponse{Current: it(blocked, false)}, true},
	} {
		m := &agentv1.Message{}
		if c.reason != 0 {
			m.Tick = &agentv1.Tick{Reason: c.reason, WorkItemId: "wi_1"}
		}
		require.Equal(t, c.stale, staleTick(m, &projection{GetWorkQueueResponse: c.queue}, nil) != "", name)
	}
}

// The agent's posture is the first that holds; a queued item's wait is not the
// agent's while it has an item in focus (SPEC section 2, upstream #2615).
func TestA4_Posture(t *testing.T) {
	agent := func(c agentv1.Control, turn string) *agentv1.Agent {
		return &agentv1.Agent{Control: c, CurrentTurnId: turn}
	}
	const runs = agentv1.Control_CONTROL_RUNNING
	state := func(s workv1.SchedulingState, r workv1.Readiness) *workv1.WorkItem {
		return &workv1.WorkItem{WorkItemId: "wi_1", SchedulingState: s, Readiness: r}
	}
	const blocked, asking = workv1.Readiness_READINESS_BLOCKED, workv1.Readiness_READINESS_WAITING_FOR_OPERATOR
	task := state(workv1.SchedulingState_SCHEDULING_STATE_WAITING_TASK, blocked)
	timer := state(workv1.SchedulingState_SCHEDULING_STATE_WAITING_TIMER, blocked)
	operator := state(workv1.SchedulingState_SCHEDULING_STATE_WAITING_OPERATOR, asking)
	stuck := state(workv1.SchedulingState_SCHEDULING_STATE_BLOCKED, blocked)
	runnable := state(workv1.SchedulingState_SCHEDULING_STATE_RUNNABLE, workv1.Readiness_READINESS_RUNNABLE)
	for name, c := range map[string]struct {
		agent *agentv1.Agent
		lane  *agentv1.Lane
		queue *workv1.GetWorkQueueResponse
		want  string
	}{
		"stopped beats a turn":         {agent(agentv1.Control_CONTROL_STOPPED, "trn_1"), nil, nil, "STOPPED"},
		"paused beats a message":       {agent(agentv1.Control_CONTROL_PAUSED, ""), &agentv1.Lane{Queued: 1}, nil, "PAUSED"},
		"a turn beats a message":       {agent(runs, "trn_1"), &agentv1.Lane{Queued: 1}, nil, "RUNNING_TURN"},
		"a message beats work":         {agent(runs, ""), &agentv1.Lane{Queued: 1}, &workv1.GetWorkQueueResponse{Current: runnable}, "QUEUED_INPUT"},
		"work in focus":                {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{Current: runnable, Blocked: []*workv1.WorkItem{task}}, "RUNNABLE_WORK"},
		"work in the queue":            {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{Counts: &workv1.WorkQueueCounts{QueuedRunnable: 1}, Blocked: []*workv1.WorkItem{task}}, "RUNNABLE_WORK"},
		"the focus, not the queue":     {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{Current: stuck, Blocked: []*workv1.WorkItem{task}}, "BLOCKED"},
		"a task before a time":         {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{Blocked: []*workv1.WorkItem{timer, task}}, "WAITING_TASK"},
		"a time before an operator":    {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{WaitingForOperator: []*workv1.WorkItem{operator}, Blocked: []*workv1.WorkItem{timer}}, "WAITING_EXTERNAL"},
		"an operator before a blocker": {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{WaitingForOperator: []*workv1.WorkItem{operator}, Blocked: []*workv1.WorkItem{stuck}}, "WAITING_OPERATOR"},
		"a blocker":                    {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{Blocked: []*workv1.WorkItem{stuck}}, "BLOCKED"},
		"nothing":                      {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{}, "IDLE"},
	} {
		p, why := posture(c.agent, c.lane, c.queue, nil)
		require.Equal(t, "POSTURE_"+c.want, p.String(), name)
		require.NotEmpty(t, why)
	}
}

// SPEC section 2: what the agent itself waits for is its posture while nothing
// is in focus.
func TestA4_PostureOfAnAgentThatWaitsByItself(t *testing.T) {
	a := &agentv1.Agent{Control: agentv1.Control_CONTROL_RUNNING}
	own := []*waitingv1.Wait{{Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Reason: "the world"}}
	p, why := posture(a, &agentv1.Lane{}, &workv1.GetWorkQueueResponse{}, own)
	require.Equal(t, agentv1.Posture_POSTURE_WAITING_EXTERNAL, p)
	require.Contains(t, why, "the world")
	p, _ = posture(a, &agentv1.Lane{}, &workv1.GetWorkQueueResponse{}, nil)
	require.Equal(t, agentv1.Posture_POSTURE_IDLE, p)
}

// What came for the agent itself is shown in the turn that it woke, and counts
// as consumed when that turn completes (SPEC section 4).
func TestP2_TheAgentsOwnTriggersAreShown(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.others.set(func() {
		r.others.waits = []*waitingv1.Wait{
			{WaitId: "wt_own", Reason: "the build", TriggerCount: 3, ConsumedCount: 1, Triggered: true},
			{WaitId: "wt_item", WorkItemId: "wi_1", TriggerCount: 1, Triggered: true},
			{WaitId: "wt_quiet", TriggerCount: 1, ConsumedCount: 1},
		}
	})
	_, err := r.service.OfferDecision(r.scheduler(), &agentv1.OfferDecisionRequest{
		AgentId: "keeper", FactsRevision: r.facts("keeper").GetFactsRevision(),
		Decision: &agentv1.Decision{Action: "tick", TickReason: agentv1.TickReason_TICK_REASON_WAKE_HINT, Reason: "agent_triggered"},
	})
	require.NoError(t, err)
	got := r.take("keeper")
	require.Contains(t, got.GetContext().GetText(), "Triggered 2 time(s): the build")
	require.Len(t, got.GetTurn().GetShownWaits(), 1)
	require.Equal(t, "wt_own", got.GetTurn().GetShownWaits()[0].GetWaitId())
	require.EqualValues(t, 3, got.GetTurn().GetShownWaits()[0].GetTriggerCount())
}

// The text of a turn: the current item first, candidates by class, completed
// items with a report only, and the rule for what wins (S0, S3, SPEC C1).
func TestC1_TheTextOfATurn(t *testing.T) {
	open := workv1.WorkItemState_WORK_ITEM_STATE_OPEN
	p := &projection{GetWorkQueueResponse: &workv1.GetWorkQueueResponse{
		Current: &workv1.WorkItem{
			WorkItemId: "wi_1", Objective: "ship 1.4", State: open, BlockedBy: "no key",
			PlanStatus: workv1.PlanStatus_PLAN_STATUS_READY, SchedulingState: workv1.SchedulingState_SCHEDULING_STATE_BLOCKED,
			TodoList:     []*workv1.TodoItem{{Text: "build", State: workv1.TodoState_TODO_STATE_COMPLETED}, {Text: "sign", State: workv1.TodoState_TODO_STATE_IN_PROGRESS}},
			PlanArtifact: &workv1.PlanArtifact{Path: "/home/keeper/work-items/wi_1/plan.md", Preview: "# Plan", PreviewComplete: true, Bytes: 6, Sha256: "abc"},
		},
		TriggeredBlocked:   []*workv1.WorkItem{{WorkItemId: "wi_2", Objective: "answer", BlockedBy: "CI", SchedulingState: workv1.SchedulingState_SCHEDULING_STATE_WAITING_EXTERNAL}},
		QueuedRunnable:     []*workv1.WorkItem{{WorkItemId: "wi_3", Objective: "tidy"}},
		WaitingForOperator: []*workv1.WorkItem{{WorkItemId: "wi_4", Objective: "decide"}},
		Blocked:            []*workv1.WorkItem{{WorkItemId: "wi_5", Objective: "upgrade"}},
		CompletedRecent:    []*workv1.WorkItem{{WorkItemId: "wi_6", Objective: "told", ResultSummary: "It is done."}, {WorkItemId: "wi_7", Objective: "untold"}},
		Counts:             &workv1.WorkQueueCounts{TriggeredBlocked: 1, QueuedRunnable: 9, WaitingForOperator: 1, Blocked: 1, Completed: 2},
	}}
	require.Equal(t, `The objective names the work, the plan interprets it and wins conflicts, todos are progress.

## Message (operator_prompt, operator_instruction)
> go on

## Current work item
wi_1 (blocked, plan ready)
Objective: ship 1.4
Plan: /home/keeper/work-items/wi_1/plan.md (6 bytes, sha256 abc)
Blocked by: no key
- [in_progress] sign
1 of 2 todos are done.
Plan begins:
> # Plan

## Triggered, to review
- wi_2: answer [waiting_external]
  blocked by: CI

## Queued and runnable (full, 8 more)
- wi_3: tidy [unspecified]

## Waiting for an operator
- wi_4: decide [unspecified]

## Blocked
- wi_5: upgrade [unspecified]

## Completed recently (full, 1 more)
- wi_6: told [unspecified]
  report: It is done.
`, p.context(&agentv1.Message{Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, Authority: agentv1.Authority_AUTHORITY_OPERATOR_INSTRUCTION, Text: "go on"}).GetText())
}

// However much must be shown of the work, the turn's message is in its context
// (SPEC A5, C1).
func TestC1_TheMessageOfATurnIsAlwaysShown(t *testing.T) {
	p := &projection{GetWorkQueueResponse: &workv1.GetWorkQueueResponse{Current: &workv1.WorkItem{WorkItemId: "wi_1", Objective: "x"}}}
	for range 30 {
		p.Current.TodoList = append(p.Current.TodoList, &workv1.TodoItem{Text: strings.Repeat("t", 1000), State: workv1.TodoState_TODO_STATE_PENDING})
	}
	c := p.context(&agentv1.Message{Text: "OPERATOR SAYS STOP"})
	require.Contains(t, c.GetText(), "> OPERATOR SAYS STOP")
	require.LessOrEqual(t, c.GetTokens(), c.GetBudgetTokens())
	long := p.context(&agentv1.Message{Text: strings.Repeat("words ", 40_000)})
	require.Contains(t, long.GetText(), "> words words")
	require.Contains(t, long.GetText(), "[cut: the message has 240000 bytes]")
}
