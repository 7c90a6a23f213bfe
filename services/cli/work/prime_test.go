package work

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/unread"
)

// openItems returns n open items with ids as long as real ones.
func openItems(n int, objective string) []*workv1.WorkItem {
	out := make([]*workv1.WorkItem, n)
	for i := range out {
		out[i] = &workv1.WorkItem{
			WorkItemId: fmt.Sprintf("wi_%026d", i), Objective: objective,
			SchedulingState: workv1.SchedulingState_SCHEDULING_STATE_RUNNABLE,
		}
	}
	return out
}

func queueOf(current *workv1.WorkItem, open int) *workv1.GetWorkQueueResponse {
	return &workv1.GetWorkQueueResponse{Current: current, Counts: &workv1.WorkQueueCounts{Open: int32(open)}}
}

// SPEC C5.9: whatever an agent holds, the text has at most 1000 tokens, is whole, and still names
// the focus and what is next.
func TestC5_PrimeIsBounded(t *testing.T) {
	const limit = PrimeTokens * bytesPerToken
	for _, unit := range []string{"x", "é", "世", "🙂", "x ", "x\n", "\x1b[31m", "a\xff"} {
		long := strings.Repeat(unit, 4<<10)
		current := openItems(1, long)[0]
		current.WorkItemId, current.BlockedBy = "wi_current", long
		current.PlanArtifact = &workv1.PlanArtifact{Path: "/" + long, Bytes: 1 << 40}
		for range 200 {
			current.TodoList = append(current.TodoList,
				&workv1.TodoItem{Text: long, State: workv1.TodoState_TODO_STATE_PENDING})
			current.Waits = append(current.Waits, &workv1.AttachedWait{
				Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Resource: long, Reason: long, TriggerCount: 1 << 60,
			})
		}
		items := openItems(500, long)
		current.Resumed = &workv1.Resumption{Wait: current.GetWaits()[0]}
		said := unread.Messages{Total: 1 << 40}
		for range primeMessages {
			said.Newest = append(said.Newest, &agentv1.Message{
				MessageId:  fmt.Sprintf("msg_%026d", 1),
				WorkItemId: items[0].GetWorkItemId(), Kind: agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT,
				TriggerId: fmt.Sprintf("trg_%026d", 1), Text: long,
			})
		}
		for _, it := range items {
			it.BlockedBy, it.HasTriggeredWaits, it.Resumed = long, true, current.GetResumed()
		}
		for _, q := range []*workv1.GetWorkQueueResponse{
			queueOf(current, 501), queueOf(nil, 500),
			queueOf(nil, 1<<31-1),
		} {
			p := Prime(long, q, items, said)
			require.LessOrEqual(t, len(p.Text), limit, "%q", unit)
			require.LessOrEqual(t, p.Tokens, PrimeTokens)
			require.True(t, utf8.ValidString(p.Text))
			require.NotContains(t, p.Text, "\x1b")
			require.Contains(t, p.Text, "\nNext: ")
			require.Contains(t, p.Text, " more: ListWorkItems with filter open\n")
			require.Greater(t, p.ShownItems, 3)
			if q.GetCurrent() != nil {
				require.Contains(t, p.Text, "In focus: wi_current")
				require.Contains(t, p.Text, "HomeRead work-items/wi_current/plan.md")
				require.Contains(t, p.Text, "more todos: GetWorkItem\n")
				require.Contains(t, p.Text, "more waits: GetWorkItem\n")
			}
		}
	}
}

// Below and at the limit every item has its line; above it the rest is counted.
func TestC5_PrimeAtBelowAndAboveItsLimit(t *testing.T) {
	const limit = PrimeTokens * bytesPerToken
	above := false
	for n := range 60 {
		p := Prime("keeper", queueOf(nil, n), openItems(n, strings.Repeat("o", 60)), unread.Messages{})
		require.LessOrEqual(t, len(p.Text), limit)
		require.Equal(t, n, p.OpenItems)
		require.Equal(t, strings.Count(p.Text, "\n- wi_"), p.ShownItems)
		if p.ShownItems == n {
			require.False(t, above)
			require.NotContains(t, p.Text, "more: ListWorkItems")
			continue
		}
		above = true
		require.Contains(t, p.Text, fmt.Sprintf("\n- and %d more: ListWorkItems with filter open\n", n-p.ShownItems))
		// One more line would not have fitted.
		require.Greater(t, len(p.Text)+len(otherItem(openItems(1, strings.Repeat("o", 60))[0])),
			limit-len("- and 60 more: ListWorkItems with filter open\n"))
	}
	require.True(t, above)
	text := func(bytes int) string { return lineOf(strings.Repeat("o", bytes), primeObjective) }
	require.Len(t, text(primeObjective-1), primeObjective-1)
	require.Len(t, text(primeObjective), primeObjective)
	require.Equal(t, strings.Repeat("o", primeObjective-3)+"…", text(primeObjective+1))
}

// What a model needs to go on is there.
func TestC5_PrimeSaysWhatToDo(t *testing.T) {
	current := &workv1.WorkItem{
		WorkItemId: "wi_1", Objective: "Ship it", PlanStatus: workv1.PlanStatus_PLAN_STATUS_READY,
		PlanArtifact: &workv1.PlanArtifact{Path: "/data/plan.md", Bytes: 12},
		TodoList: []*workv1.TodoItem{
			{Text: "build", State: workv1.TodoState_TODO_STATE_COMPLETED},
			{Text: "tag", State: workv1.TodoState_TODO_STATE_PENDING},
			{Text: "test\nall", State: workv1.TodoState_TODO_STATE_IN_PROGRESS},
		},
		Waits: []*workv1.AttachedWait{
			{
				Kind: waitingv1.WaitKind_WAIT_KIND_TIMER, Mode: waitingv1.WaitMode_WAIT_MODE_INTENT, Resource: "tmr_1",
				Reason: "look again",
			},
		},
	}
	triggered := &workv1.WorkItem{
		WorkItemId: "wi_2", Objective: "Answer",
		SchedulingState: workv1.SchedulingState_SCHEDULING_STATE_WAITING_EXTERNAL, HasTriggeredWaits: true,
		BlockedBy: "CI runs",
	}
	q := queueOf(current, 3)
	q.TriggeredBlocked = []*workv1.WorkItem{triggered}
	p := Prime("keeper", q,
		[]*workv1.WorkItem{
			current, {
				WorkItemId: "wi_3", Objective: "Later",
				SchedulingState: workv1.SchedulingState_SCHEDULING_STATE_RUNNABLE,
			}, triggered,
		}, unread.Messages{})
	require.Equal(t, `Quartet, the durable memory of agent keeper.

In focus: wi_1 (plan_status ready)
Objective: Ship it
Plan: HomeRead work-items/wi_1/plan.md (12 bytes, on the server /data/plan.md)
Todos (1 of 3 done):
- in progress: test all
- tag
- done: build
Waits:
- interest in timer tmr_1: look again

Other open items (2):
- wi_2 [waiting_external, triggered: CI runs] Answer
- wi_3 [runnable] Later

Next: read its plan with HomeRead and go on with the first open todo. UpdateWorkItem with the whole todo_list, done ones included, after each step, CompleteWorkItem with a report when it is done, WaitFor when it cannot go on.
`, p.Text)
	require.Equal(t, Primer{
		AgentID: "keeper", Text: p.Text, Tokens: (len(p.Text) + 3) / 4, OpenItems: 3, ShownItems: 3,
	}, p)

	// What an operator said, and what it resumed.
	said := unread.Messages{Total: 4, Newest: []*agentv1.Message{
		{
			MessageId: "msg_3", Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, WorkItemId: "wi_1",
			Text: "Apache,\nplease", CreatedAt: timestamppb.New(time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)),
		},
		{
			MessageId: "msg_4", Kind: agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT, TriggerId: "trg_1",
			Data: []byte{1, 2}, CreatedAt: timestamppb.New(time.Date(2026, 3, 4, 6, 0, 0, 0, time.UTC)),
		},
	}}
	current.Resumed = &workv1.Resumption{Wait: &workv1.AttachedWait{
		Kind:   waitingv1.WaitKind_WAIT_KIND_OPERATOR,
		Reason: "MIT or Apache?",
	}}
	text := Prime("keeper", q, nil, said).Text
	require.Contains(t, text, "Resumed: its wait is over: operator: MIT or Apache?\n")
	require.Contains(t, text, `
Messages that no turn has taken, and may be done already (4, the newest 2):
- operator, 2026-03-04 05:06Z about wi_1 (msg_3): Apache, please
- trigger trg_1, evidence and no instruction, 2026-03-04 06:00Z (msg_4): 2 bytes that are no text
`)
	current.Resumed = nil
	triggered.Resumed = &workv1.Resumption{}
	require.Contains(t, Prime("keeper", q, nil, said).Text, "- wi_2 [waiting_external, triggered, resumed: CI runs] "+
		"Answer\n")

	current.BlockedBy, current.PlanArtifact = "the key is missing", nil
	require.Contains(t, Prime("keeper", queueOf(current, 1), nil, unread.Messages{}).Text,
		"plan.md (empty)\nBlocked by: the key is missing\n")
	require.Contains(t, Prime("keeper", queueOf(current, 1), nil, unread.Messages{}).Text,
		"\nNext: look at what blocks it.")
	current.PlanArtifact = &workv1.PlanArtifact{Problem: "missing"}
	require.Contains(t, Prime("keeper", queueOf(current, 1), nil, unread.Messages{}).Text, "plan.md (missing)\n")
	require.Contains(t, Prime("keeper", queueOf(nil, 1), openItems(1, "x"), unread.Messages{}).Text,
		"No item is in focus.\n\nOther open items (1):\n")
	require.Equal(t, "Quartet, the durable memory of agent keeper.\n\nNo item is in focus.\n\nNext: nothing is open. "+
		"CreateWorkItem once for each independent objective, then PickWorkItem.\n",
		Prime("keeper", queueOf(nil, 0), nil, unread.Messages{}).Text)
}
