package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/proc"
)

// ask sends one REST request and gives the status and the answer.
func (s *system) ask(t *testing.T, ctx context.Context, method, path string, body any) (int, map[string]any) {
	t.Helper()
	raw := must.Value(json.Marshal(body))(t)
	if body == nil {
		raw = nil
	}
	req := must.Value(http.NewRequestWithContext(ctx, method, s.http+path, bytes.NewReader(raw)))(t)
	req.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp := must.Value(proc.HTTP.Do(req))(t)
	defer func() { _ = resp.Body.Close() }()
	out := map[string]any{}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&out))
	return resp.StatusCode, out
}

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

// Every way in which items may be completed, with the planes as they are (SPEC W6, W7).
func TestW7_EveryWayToComplete(t *testing.T) {
	proc.Long(t)
	eachWay(t, func(t *testing.T, ctx context.Context, s *system) {
		complete := func(item string) *agentv1.ToolCall {
			return tool(t, "CompleteWorkItem", map[string]any{"work_item_id": item})
		}
		pick := func(item string) *agentv1.ToolCall {
			return tool(t, "PickWorkItem", map[string]any{"work_item_id": item, "reason": "test"})
		}
		for i, c := range []struct {
			name string
			// calls of each round of one turn, made of three items; the first is in focus.
			calls    func(items []string) [][]*agentv1.ToolCall
			texts    []string
			reports  []string // of the three items, "" for none
			promoted bool     // the last round promotes and ends the turn
			notice   string   // of the last round
		}{
			{
				name: "one completion of the item in focus", texts: []string{"done"},
				calls:   func(i []string) [][]*agentv1.ToolCall { return [][]*agentv1.ToolCall{{complete(i[0])}} },
				reports: []string{"done", "", ""}, promoted: true,
			},
			{
				name: "without text", texts: []string{""},
				calls:   func(i []string) [][]*agentv1.ToolCall { return [][]*agentv1.ToolCall{{complete(i[0])}} },
				reports: []string{"", "", ""}, notice: "report_missing",
			},
			{
				name: "with blank text", texts: []string{" \n\t"},
				calls:   func(i []string) [][]*agentv1.ToolCall { return [][]*agentv1.ToolCall{{complete(i[0])}} },
				reports: []string{"", "", ""}, notice: "report_missing",
			},
			{
				name: "of an item not in focus", texts: []string{"done"},
				calls:   func(i []string) [][]*agentv1.ToolCall { return [][]*agentv1.ToolCall{{complete(i[1])}} },
				reports: []string{"", "done", ""}, promoted: true,
			},
			{
				name: "after a pick in the same round", texts: []string{"done"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{{pick(i[1]), complete(i[1])}}
				},
				reports: []string{"", "done", ""}, promoted: true,
			},
			{
				name: "of the item that a pick has left", texts: []string{"done"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{{pick(i[1]), complete(i[0])}}
				},
				reports: []string{"done", "", ""}, promoted: true,
			},
			{
				name: "after a pick in an earlier round", texts: []string{"first", "done"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{{pick(i[2])}, {complete(i[2])}}
				},
				reports: []string{"", "", "done"}, promoted: true,
			},
			{
				name: "of two items", texts: []string{"done"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{{complete(i[0]), complete(i[1])}}
				},
				reports: []string{"", "", ""}, notice: "multiple_completions",
			},
			{
				name: "of two items, each in focus in its time", texts: []string{"done"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{{complete(i[0]), pick(i[1]), complete(i[1])}}
				},
				reports: []string{"", "", ""}, notice: "multiple_completions",
			},
			{
				name: "twice of one item in one round", texts: []string{"done"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{{complete(i[0]), complete(i[0])}}
				},
				reports: []string{"done", "", ""}, promoted: true,
			},
			{
				name: "again, to add the report", texts: []string{"", "the report"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{{complete(i[0])}, {complete(i[0])}}
				},
				reports: []string{"the report", "", ""}, promoted: true,
			},
			{
				name: "again, of an item that was not in focus", texts: []string{"", "the report"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{{complete(i[1])}, {complete(i[1])}}
				},
				reports: []string{"", "the report", ""}, promoted: true,
			},
			{
				name: "again, beside another", texts: []string{"", "which?"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{{complete(i[0])}, {complete(i[0]), complete(i[1])}}
				},
				reports: []string{"", "", ""}, notice: "multiple_completions",
			},
			{
				name: "beside one that is refused", texts: []string{"done"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{{complete("wi_00000000000000000000000zzz"), complete(i[0])}}
				},
				reports: []string{"done", "", ""}, promoted: true,
			},
			{
				name: "then work that goes on in the same round", texts: []string{"done"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{{complete(i[0]), pick(i[1])}}
				},
				reports: []string{"done", "", ""}, promoted: true,
			},
			{
				name: "and then it waits", texts: []string{"done"},
				calls: func(i []string) [][]*agentv1.ToolCall {
					return [][]*agentv1.ToolCall{
						{
							complete(i[0]),
							tool(t, "WaitFor", map[string]any{"wake": "timer", "after": "3600s", "reason": "later"}),
						},
					}
				},
				reports: []string{"done", "", ""}, promoted: true,
			},
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
			tn.round(t, ctx, "", pick(items[0]))
			var last *agentv1.SubmitRoundResponse
			for n, calls := range c.calls(items) {
				last = tn.try(t, ctx, c.texts[n], calls...)
			}
			for n, want := range c.reports {
				it := s.item(t, ctx, agentID, items[n])
				require.Equal(t, want, it.GetResultSummary(), "%s: item %d", c.name, n)
				require.Equal(t, want != "", it.GetResultBriefId() != "", c.name)
				if want != "" {
					require.Equal(t, tn.got.GetTurn().GetTurnId(), it.GetCompletedInTurnId(), c.name)
				}
			}
			require.Equal(t, c.promoted, last.GetPromotedWorkItemId() != "", c.name)
			require.Equal(t, c.promoted, last.GetTurnEnded(), c.name)
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

// The history of an item, over REST: every mutation with the run and the turn
// it was made in (SPEC W11).
func TestW11_HistoryOverREST(t *testing.T) {
	s := oneProcess(t)
	ctx := t.Context()
	s.spawn(t, ctx, "keeper")
	s.say(t, ctx, "keeper", "go")
	tn := s.acquire(t, ctx, "keeper")
	r := tn.round(t, ctx, "",
		tool(t, "CreateWorkItem",
			map[string]any{
				"objective": "ship",
				"todo_list": []any{map[string]any{"text": "build", "state": "pending"}},
			}))
	item := at(r.GetToolResults()[0], "work_item", "work_item_id")
	tn.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": item}))
	tn.round(t, ctx, "shipped", tool(t, "CompleteWorkItem", map[string]any{"work_item_id": item}))

	code, body := s.ask(t, ctx, http.MethodGet, "/v1/agents/keeper/work-items/"+item+"/history", nil)
	require.Equal(t, http.StatusOK, code)
	raw := must.Value(json.Marshal(body))(t)
	h := &workv1.ListWorkItemHistoryResponse{}
	require.NoError(t, protojson.Unmarshal(raw, h))
	var types []string
	for i, m := range h.GetMutations() {
		types = append(types, m.GetEventType())
		require.EqualValues(t, i+1, m.GetNumber())
		if m.GetEventType() == "report_promoted" {
			require.Equal(t, "result_summary", m.GetChanges()[0].GetField())
			require.Equal(t, "shipped", m.GetChanges()[0].GetTo().GetStringValue())
		}
		require.Equal(t, tn.got.GetTurn().GetRunId(), m.GetRunId(), m.GetEventType())
		require.Equal(t, tn.got.GetTurn().GetTurnId(), m.GetTurnId())
		require.Equal(t, "keeper", m.GetActorAgentId())
	}
	require.Equal(t, []string{
		"work_item_created", "work_item_picked", "work_item_completed", "focus_released",
		"report_promoted",
	}, types)

	code, body = s.ask(t, ctx, http.MethodGet, "/v1/agents/keeper/work-items/"+item+
		"/history?pageSize=2&newestFirst=true", nil)
	require.Equal(t, http.StatusOK, code)
	require.Len(t, body["mutations"], 2)
	code, body = s.ask(t, ctx, http.MethodGet,
		fmt.Sprintf("/v1/agents/keeper/work-items/%s/history?pageSize=3&newestFirst=true&pageToken=%v", item,
			body["nextPageToken"]), nil)
	require.Equal(t, http.StatusOK, code)
	require.Len(t, body["mutations"], 3)
	require.NotContains(t, body, "nextPageToken")
	code, _ = s.ask(t, ctx, http.MethodGet, "/v1/agents/keeper/work-items/wi_00000000000000000000000zzz/history", nil)
	require.Equal(t, http.StatusNotFound, code)
}

// Each limit of SPEC X8 that touches work, at, below and above it, over REST;
// over gRPC the same table is in services/work.
func TestX8_WorkLimitsOverREST(t *testing.T) {
	s := oneProcess(t)
	ctx := t.Context()
	s.spawn(t, ctx, "keeper")
	items := "/v1/agents/keeper/work-items"
	_, made := s.ask(t, ctx, http.MethodPost, items, map[string]any{"objective": "limits"})
	one := items + "/" + made["workItem"].(map[string]any)["workItemId"].(string)
	todos := func(n int, text string) []any {
		out := make([]any, n)
		for i := range out {
			out[i] = map[string]any{"text": text, "state": "TODO_STATE_PENDING"}
		}
		return out
	}
	for name, c := range map[string]struct {
		limit  int
		method string
		path   string
		body   func(n int) map[string]any
	}{
		"objective": {2000, http.MethodPost, items, func(n int) map[string]any {
			return map[string]any{"objective": strings.Repeat("世", n)}
		}},
		"objective update": {2000, http.MethodPatch, one, func(n int) map[string]any {
			return map[string]any{"objective": strings.Repeat("é", n)}
		}},
		"todo text": {1000, http.MethodPatch, one, func(n int) map[string]any {
			return map[string]any{"todoList": map[string]any{"items": todos(1, strings.Repeat("🙂", n))}}
		}},
		"todo entries": {200, http.MethodPatch, one, func(n int) map[string]any {
			return map[string]any{"todoList": map[string]any{"items": todos(n, "x")}}
		}},
		"plan": {16 << 10, http.MethodPost, items, func(n int) map[string]any {
			return map[string]any{"objective": "x", "plan": strings.Repeat("p", n)}
		}},
		"blocked_by": {16 << 10, http.MethodPatch, one, func(n int) map[string]any {
			return map[string]any{"blockedBy": strings.Repeat("b", n)}
		}},
		"request_id": {128, http.MethodPost, items, func(n int) map[string]any {
			return map[string]any{"objective": "x", "requestId": strings.Repeat("r", n)}
		}},
	} {
		for _, n := range []int{c.limit - 1, c.limit} {
			code, body := s.ask(t, ctx, c.method, c.path, c.body(n))
			require.Equal(t, http.StatusOK, code, "%s at %d: %v", name, n, body)
		}
		code, body := s.ask(t, ctx, c.method, c.path, c.body(c.limit+1))
		require.Equal(t, http.StatusBadRequest, code, name)
		raw := must.Value(json.Marshal(body))(t)
		require.Contains(t, string(raw), "LIMIT_EXCEEDED", name)
		require.Contains(t, string(raw), fmt.Sprint(c.limit), name)
		require.Contains(t, string(raw), fmt.Sprint(c.limit+1), name)
	}
}

// The plan's body is in its file and nowhere else; who asks for it is refused (SPEC W3).
func TestW3_IncludePlanIsRefused(t *testing.T) {
	s := oneProcess(t)
	ctx := t.Context()
	s.spawn(t, ctx, "keeper")
	s.say(t, ctx, "keeper", "go")
	tn := s.acquire(t, ctx, "keeper")
	r := tn.round(t, ctx, "",
		tool(t, "CreateWorkItem", map[string]any{"objective": "ship", "plan": strings.Repeat("x", 2000)}))
	item := at(r.GetToolResults()[0], "work_item", "work_item_id")
	r = tn.try(t, ctx, "", tool(t, "GetWorkItem", map[string]any{"work_item_id": item, "include_plan": true}),
		tool(t, "ListWorkItems", map[string]any{"include_plan": true}),
		tool(t, "GetWorkItem", map[string]any{"work_item_id": item, "include_todo_list": true}))
	for _, res := range r.GetToolResults()[:2] {
		require.Equal(t, "unknown_field", res.GetError().GetKind())
	}
	require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, r.GetToolResults()[2].GetStatus(),
		r.GetToolResults()[2].GetError().GetMessage())
	code, body := s.ask(t, ctx, http.MethodGet, "/v1/agents/keeper/work-items/"+item+"?includePlan=true", nil)
	require.Equal(t, http.StatusBadRequest, code, body)

	a := s.item(t, ctx, "keeper", item).GetPlanArtifact()
	require.Len(t, a.GetPreview(), 1600)
	require.NoError(t, os.WriteFile(a.GetPath(), []byte("another plan"), 0o600))
	require.Equal(t, "another plan", s.item(t, ctx, "keeper", item).GetPlanArtifact().GetPreview())
}
