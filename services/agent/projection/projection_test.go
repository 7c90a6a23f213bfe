package projection

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// A tick is dropped exactly when what it is about is no longer true (SPEC D4).
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
		"the current goes on":     {agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT, &workv1.GetWorkQueueResponse{Current: it(runnable, false)}, false},
		"the current was blocked": {agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT, &workv1.GetWorkQueueResponse{Current: it(blocked, false)}, true},
		"another is current":      {agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT, &workv1.GetWorkQueueResponse{Current: &workv1.WorkItem{WorkItemId: "wi_2", Readiness: runnable}}, true},
		"nothing is current":      {agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT, &workv1.GetWorkQueueResponse{}, true},
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
		require.Equal(t, c.stale, StaleTick(m, &Projection{GetWorkQueueResponse: c.queue}, nil) != "", name)
	}
}

// The text of a turn has the current item first, candidates by class, completed items only
// with their report, and says what takes precedence (SPEC C1).
func TestC1_TheTextOfATurn(t *testing.T) {
	open := workv1.WorkItemState_WORK_ITEM_STATE_OPEN
	p := &Projection{GetWorkQueueResponse: &workv1.GetWorkQueueResponse{
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
		CompletedRecent:    []*workv1.WorkItem{{WorkItemId: "wi_6", Objective: "reported", ResultSummary: "It is done."}, {WorkItemId: "wi_7", Objective: "unreported"}},
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
- wi_6: reported [unspecified]
  report: It is done.
`, p.Render(&agentv1.Message{Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, Authority: agentv1.Authority_AUTHORITY_OPERATOR_INSTRUCTION, Text: "go on"}).GetText())
}

// However much must be shown of the work, the turn's message is in its context
// (SPEC A5, C1).
func TestC1_TheMessageOfATurnIsAlwaysShown(t *testing.T) {
	p := &Projection{GetWorkQueueResponse: &workv1.GetWorkQueueResponse{Current: &workv1.WorkItem{WorkItemId: "wi_1", Objective: "x"}}}
	for range 30 {
		p.Current.TodoList = append(p.Current.TodoList, &workv1.TodoItem{Text: strings.Repeat("t", 1000), State: workv1.TodoState_TODO_STATE_PENDING})
	}
	c := p.Render(&agentv1.Message{Text: "OPERATOR SAYS STOP"})
	require.Contains(t, c.GetText(), "> OPERATOR SAYS STOP")
	require.LessOrEqual(t, c.GetTokens(), c.GetBudgetTokens())
	long := p.Render(&agentv1.Message{Text: strings.Repeat("words ", 40_000)})
	require.Contains(t, long.GetText(), "> words words")
	require.Contains(t, long.GetText(), "[cut: the message has 240000 bytes]")
}
