package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/proc"
)

func (s *system) item(t *testing.T, ctx context.Context, agentID, itemID string) *workv1.WorkItem {
	t.Helper()
	r := must.Value(s.work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: agentID, WorkItemId: itemID}))(t)
	return r.GetWorkItem()
}

// try is round that takes failed calls as they are.
func (tn *turn) try(t *testing.T, ctx context.Context, text string,
	calls ...*agentv1.ToolCall,
) *agentv1.SubmitRoundResponse {
	t.Helper()
	tr := tn.got.GetTurn()
	r := must.Value(tn.s.agents.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
		AgentId: tr.GetAgentId(), TurnId: tr.GetTurnId(), RunId: tr.GetRunId(), RoundIndex: tn.n, Text: text,
		ToolCalls: calls,
	}))(t)
	tn.n++
	return r
}

// callsOf returns the calls that a list such as "pick 1, complete 1" names, with numbers of items; -1 is no item.
func callsOf(t *testing.T, items []string, list string) (calls []*agentv1.ToolCall) {
	for what := range strings.SplitSeq(list, ", ") {
		var verb string
		var n int
		must.Value(fmt.Sscan(what, &verb, &n))(t)
		item := "wi_00000000000000000000000zzz"
		if n >= 0 {
			item = items[n]
		}
		switch verb {
		case "complete":
			calls = append(calls, tool(t, "CompleteWorkItem", map[string]any{"work_item_id": item}))
		case "pick":
			calls = append(calls, tool(t, "PickWorkItem", map[string]any{"work_item_id": item, "reason": "test"}))
		default:
			calls = append(calls, tool(t, "WaitFor",
				map[string]any{"wake": "timer", "after": "3600s", "reason": "later"}))
		}
	}
	return calls
}

// Every way in which items may be completed, with the planes as they are (SPEC W6, W7).
func TestW7_EveryWayToComplete(t *testing.T) {
	proc.Long(t)
	const none = -1
	eachWay(t, func(t *testing.T, ctx context.Context, s *system) {
		type round struct{ text, calls string }
		for i, c := range []struct {
			name   string
			rounds []round // of one turn: "complete 1" completes the second of three items; the first is in focus
			item   int     // that has the text of the last round as its report and ends the turn; none: -1
			notice string  // of the last round
		}{
			{"one completion of the item in focus", []round{{"done", "complete 0"}}, 0, ""},
			{"without text", []round{{"", "complete 0"}}, none, "report_missing"},
			{"with blank text", []round{{" \n\t", "complete 0"}}, none, "report_missing"},
			{"of an item not in focus", []round{{"done", "complete 1"}}, 1, ""},
			{"after a pick in the same round", []round{{"done", "pick 1, complete 1"}}, 1, ""},
			{"of the item that a pick has left", []round{{"done", "pick 1, complete 0"}}, 0, ""},
			{"after a pick in an earlier round", []round{{"first", "pick 2"}, {"done", "complete 2"}}, 2, ""},
			{"of two items", []round{{"done", "complete 0, complete 1"}}, none, "multiple_completions"},
			{
				"of two items, each in focus in its time",
				[]round{{"done", "complete 0, pick 1, complete 1"}},
				none,
				"multiple_completions",
			},
			{"twice of one item in one round", []round{{"done", "complete 0, complete 0"}}, 0, ""},
			{"again, to add the report", []round{{"", "complete 0"}, {"the report", "complete 0"}}, 0, ""},
			{"again, not in focus", []round{{"", "complete 1"}, {"the report", "complete 1"}}, 1, ""},
			{
				"again, beside another",
				[]round{{"", "complete 0"}, {"which?", "complete 0, complete 1"}},
				none,
				"multiple_completions",
			},
			{"beside one that is refused", []round{{"done", "complete -1, complete 0"}}, 0, ""},
			{"then work that goes on in the same round", []round{{"done", "complete 0, pick 1"}}, 0, ""},
			{"and then it waits", []round{{"done", "complete 0, wait 0"}}, 0, ""},
		} {
			agentID := fmt.Sprint("keeper", i)
			s.spawn(t, ctx, agentID)
			var items []string
			for n := range 3 {
				r := must.Value(s.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
					AgentId: agentID, Objective: fmt.Sprint("objective ", n),
				}))(t)
				items = append(items, r.GetWorkItem().GetWorkItemId())
			}
			s.say(t, ctx, agentID, "go")
			tn := s.acquire(t, ctx, agentID)
			tn.round(t, ctx, "", callsOf(t, items, "pick 0")...)
			var last *agentv1.SubmitRoundResponse
			for _, r := range c.rounds {
				last = tn.try(t, ctx, r.text, callsOf(t, items, r.calls)...)
			}
			for n, itemID := range items {
				it, want := s.item(t, ctx, agentID, itemID), ""
				if n == c.item {
					want = c.rounds[len(c.rounds)-1].text
					require.Equal(t, tn.got.GetTurn().GetTurnId(), it.GetCompletedInTurnId(), c.name)
				}
				require.Equal(t, want, it.GetResultSummary(), "%s: item %d", c.name, n)
				require.Equal(t, want != "", it.GetResultBriefId() != "", c.name)
			}
			require.Equal(t, c.item != none, last.GetPromotedWorkItemId() != "", c.name)
			require.Equal(t, c.item != none, last.GetTurnEnded(), c.name)
			if c.notice == "" {
				require.Empty(t, last.GetNotices(), c.name)
			} else {
				require.Len(t, last.GetNotices(), 1, c.name)
				require.True(t, strings.HasPrefix(last.GetNotices()[0], c.notice), "%s: %s", c.name, last.GetNotices())
			}
		}

		// Outside a turn there is no round whose text could be a report.
		s.spawn(t, ctx, "outside")
		r, err := s.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{AgentId: "outside", Objective: "x"})
		require.NoError(t, err)
		for range 2 {
			done := must.Value(s.work.CompleteWorkItem(ctx, &workv1.CompleteWorkItemRequest{
				AgentId:    "outside",
				WorkItemId: r.GetWorkItem().GetWorkItemId(),
			}))(t)
			require.Empty(t, done.GetWorkItem().GetResultSummary())
		}
	})
}

// What still runs is warned of; what blocks is waited for (SPEC W6).
func TestW6_RunningTasks(t *testing.T) {
	proc.Long(t)
	eachWay(t, func(t *testing.T, ctx context.Context, s *system) {
		s.spawn(t, ctx, "keeper")
		s.say(t, ctx, "keeper", "go")
		tn := s.acquire(t, ctx, "keeper")
		r := tn.round(t, ctx, "", tool(t, "CreateWorkItem", map[string]any{"objective": "build"}))
		item := at(r.GetToolResults()[0], "work_item", "work_item_id")
		r = tn.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": item}),
			tool(t, "ExecCommand", map[string]any{"cmd": "sleep 600", "yield_time": "0s", "blocking": true}),
			tool(t, "ExecCommand", map[string]any{"cmd": "sleep 601", "yield_time": "0s"}))
		blocking, other := at(r.GetToolResults()[1], "handle", "task_id"),
			at(r.GetToolResults()[2], "handle", "task_id")

		r = tn.try(t, ctx, "done", tool(t, "CompleteWorkItem", map[string]any{"work_item_id": item}))
		e := r.GetToolResults()[0].GetError()
		require.Equal(t, "blocking_execution", e.GetKind())
		require.Equal(t, blocking, e.GetDetails().GetFields()["task_ids"].GetStringValue())
		require.False(t, r.GetTurnEnded())
		_, err := s.work.CompleteWorkItem(ctx, &workv1.CompleteWorkItemRequest{AgentId: "keeper", WorkItemId: item})
		require.ErrorIs(t, err, fault.BlockingExecution, "nor does an operator complete it")
		require.True(t, s.item(t, ctx, "keeper", item).GetIsCurrent(), "nothing changed")

		must.Value(s.tasks.StopTask(ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: blocking}))(t)
		require.Eventually(t, func() bool {
			got, err := s.tasks.GetTask(ctx, &taskv1.GetTaskRequest{AgentId: "keeper", TaskId: blocking})
			return err == nil && got.GetTask().GetState() == taskv1.TaskState_TASK_STATE_CANCELLED
		}, time.Minute, 10*time.Millisecond)
		r = tn.try(t, ctx, "done", tool(t, "CompleteWorkItem", map[string]any{"work_item_id": item}))
		require.Equal(t, item, r.GetPromotedWorkItemId())
		w := r.GetToolResults()[0].GetWarnings()
		require.Len(t, w, 1)
		require.Equal(t, "active_tasks", w[0].GetFields()["kind"].GetStringValue())
		require.Equal(t, other, w[0].GetFields()["task_ids"].GetListValue().GetValues()[0].GetStringValue())
		promoted, _, _ := strings.Cut(s.everything(t, ctx)[strings.Index(s.everything(t, ctx), "report_promoted"):],
			"evt_")
		require.Contains(t, promoted, "active_tasks", "the report keeps the warning")
		must.Value(s.tasks.StopTask(ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: other}))(t)
	})
}
