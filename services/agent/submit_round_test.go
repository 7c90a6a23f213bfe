package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/rpc"
	"quartet/services/agent/runners"
)

// turn returns a rig with an open turn of keeper.
func turn(t *testing.T) (*rig, *agentv1.AcquireTurnResponse) {
	r := newRig(t)
	r.spawn("keeper")
	r.send("keeper", "go", normal)
	return r, r.take("keeper")
}

func (r *rig) on(method string, answer func(context.Context, proto.Message) (proto.Message, error)) {
	r.others.set(func() { r.others.answer[method] = answer })
}

func statuses(resp *agentv1.SubmitRoundResponse) []string {
	var out []string
	for _, res := range resp.GetToolResults() {
		s := pbjson.EnumText(res.GetStatus())
		if res.GetError() != nil {
			s += "/" + res.GetError().GetKind()
		}
		out = append(out, s)
	}
	return out
}

func TestA6_CallsRunInOrderAsTheRun(t *testing.T) {
	r, a := turn(t)
	run := a.GetTurn().GetRunId()
	resp := r.submit(a, 0, "let us see", use("CreateWorkItem", "objective", "ship"), use("ListWorkItems"),
		use("ExecCommand", "cmd", "make"))
	require.Equal(t, []string{"success", "success", "success"}, statuses(resp))
	calls := r.others.seen()
	require.Equal(t, []string{"CreateWorkItem", "ListWorkItems", "ExecCommand"}, r.others.methods())
	for i, c := range calls {
		require.Equal(t, rpc.Actor{
			Namespace: "acme", Principal: "agent/keeper", Role: rpc.RoleAgent, AgentID: "keeper", RunID: run,
		}, c.actor)
		if c.method != "ListWorkItems" {
			require.Equal(t, fmt.Sprintf("%s/0/%d", run, i), c.requestID)
		}
	}
	require.Equal(t, "task", calls[2].plane)
	require.Equal(t, "make", calls[2].req.(*taskv1.ExecCommandRequest).GetCommand().GetCmd())
	require.Equal(t, 10*time.Second, calls[2].req.(*taskv1.ExecCommandRequest).GetYieldTime().AsDuration())
	require.NotNil(t, resp.GetLeaseExpiresAt())
	require.False(t, resp.GetTurnEnded())
}

func TestX2_ARepeatedRoundRunsNothingTwice(t *testing.T) {
	r, a := turn(t)
	calls := []*agentv1.ToolCall{use("CreateWorkItem", "objective", "ship"), use("ListWorkItems")}
	calls[0].CallId = "c1"
	first := r.submit(a, 0, "text", calls...)
	for range 2 {
		again := r.submit(a, 0, "text", calls...)
		require.Equal(t, statuses(first), statuses(again))
		require.Len(t, r.others.seen(), 2)
		r.restart()
	}
	require.Equal(t, "c1", first.GetToolResults()[0].GetCallId())

	must.Refuse(r.trySubmit(a, 0, "another text", calls...))(t, fault.RequestIDReused)
	must.Refuse(r.trySubmit(a, 0, "text", calls[0]))(t, fault.RequestIDReused)
	_, err := r.trySubmit(a, 2, "text")
	require.ErrorIs(t, err, fault.InvalidArgument)
	require.Contains(t, err.Error(), "must be 1")
	must.Refuse(r.trySubmit(a, -1, "text"))(t, fault.InvalidArgument)
	require.Len(t, r.others.seen(), 2)

	// It is answered also after the turn has ended.
	r.finish(a, done)
	again := r.submit(a, 0, "text", calls...)
	require.Equal(t, statuses(first), statuses(again))
	require.True(t, again.GetTurnEnded())
	must.Refuse(r.trySubmit(a, 1, "more"))(t, fault.TurnEnded)
}

// A crash between two results: the repetition asks again, under the same
// request id, for what it does not know, and for nothing else.
func TestA6_ACrashBetweenResultsResumes(t *testing.T) {
	r, a := turn(t)
	run := a.GetTurn().GetRunId()
	ctx, crash := context.WithCancel(r.runner())
	r.on("PickWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		crash() // the call has landed, its result was not recorded
		return &workv1.PickWorkItemResponse{}, nil
	})
	calls := []*agentv1.ToolCall{
		use("CreateWorkItem", "objective", "ship"),
		use("PickWorkItem", "work_item_id", "wi_1"), use("ListWorkItems"),
	}
	require.Error(t, must.Err(r.service.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
		AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: run, ToolCalls: calls,
	})))
	r.restart()

	must.Refuse(r.trySubmit(a, 1, "skip it"))(t, fault.InvalidArgument, "the round before has calls without a result")
	resp := r.submit(a, 0, "", calls...)
	require.Equal(t, []string{"success", "success", "success"}, statuses(resp))
	require.Equal(t, []string{"CreateWorkItem", "PickWorkItem", "PickWorkItem", "ListWorkItems"}, r.others.methods())
	seen := r.others.seen()
	require.Equal(t, run+"/0/1", seen[1].requestID)
	require.Equal(t, seen[1].requestID, seen[2].requestID)
}

// Arguments without content are the same before and after a restart.
func TestX2_EmptyArgumentsSurviveARestart(t *testing.T) {
	r, a := turn(t)
	calls := []*agentv1.ToolCall{{Name: "ListWorkItems"}, {Name: "ListWorkItems", Arguments: &structpb.Struct{}}}
	r.submit(a, 0, "x", calls...)
	r.restart()
	r.submit(a, 0, "x", calls...)
	require.Len(t, r.others.seen(), 2)
}

func TestC4_ABadCallIsAResultAndNothingMore(t *testing.T) {
	r, a := turn(t)
	r.on("PickWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		return nil, fault.WorkItemCompleted.New("it is completed", "work_item_id", "wi_1")
	})
	resp := r.submit(a, 0, "",
		use("Nonsense"),
		use("board_claim_step"), // a worker's
		use("CreateWorkItem", "objective", "x", "colour", "red"),
		use("CreateWorkItem", "objective", 7),
		use("CreateWorkItem", "objective", "x", "agent_id", "other"),
		use("CreateWorkItem", "objective", "x", "request_id", "mine"),
		use("ExecCommand", "cmd", "x", "yield_time", 10),
		use("PickWorkItem", "work_item_id", "wi_1"),
		use("ListWorkItems"),
	)
	got := statuses(resp)
	require.Equal(t, []string{"error/tool_not_available", "error/tool_not_available"}, got[:2])
	for _, s := range got[2:7] {
		require.True(t, strings.HasPrefix(s, "error/"), s)
	}
	require.Equal(t, []string{"error/work_item_completed", "success"}, got[7:])
	require.Equal(t, []string{"PickWorkItem", "ListWorkItems"}, r.others.methods())
	e := resp.GetToolResults()[7].GetError()
	require.Equal(t, "wi_1", e.GetDetails().GetFields()["work_item_id"].GetStringValue())
	require.NotEmpty(t, e.GetRecoveryHint())
	require.False(t, e.GetRetryable())
	require.Contains(t, resp.GetToolResults()[0].GetError().GetMessage(), "PickWorkItem", "it says what there is")
}

// The seeds' shapes: todo_list is a list, blocked_by null clears.
func TestC4_SeedShapes(t *testing.T) {
	r, a := turn(t)
	r.submit(a, 0, "",
		use("UpdateWorkItem", "work_item_id", "wi_1", "blocked_by", nil),
		use("UpdateWorkItem", "work_item_id", "wi_1", "todo_list",
			[]any{map[string]any{"text": "x", "state": "in_progress"}}, "plan_status", "needs_input"),
	)
	first, second := r.others.seen()[0].req.(*workv1.UpdateWorkItemRequest),
		r.others.seen()[1].req.(*workv1.UpdateWorkItemRequest)
	require.True(t, first.GetClearBlockedBy())
	require.Nil(t, first.BlockedBy)
	require.Equal(t, workv1.TodoState_TODO_STATE_IN_PROGRESS, second.GetTodoList().GetItems()[0].GetState())
	require.Equal(t, workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT, second.GetPlanStatus())

	// The seeds' names of what a read shows; a plan's body is asked for in vain.
	resp := r.submit(a, 1, "",
		use("GetWorkItem", "work_item_id", "wi_1", "include_todo_list", false),
		use("GetWorkItem", "work_item_id", "wi_1", "include_todo_list", true),
		use("ListWorkItems", "filter", "queued", "limit", 7, "include_todo_list", true),
		use("GetWorkItem", "work_item_id", "wi_1", "include_plan", true),
		use("ListWorkItems", "include_plan", true),
		use("ListWorkItems", "limit", 7, "page_size", 8),
		use("GetWorkItem", "work_item_id", "wi_1", "include_todo_list", "yes"),
	)
	require.Equal(t, []string{
		"success", "success", "success", "error/unknown_field", "error/unknown_field",
		"error/unknown_field", "error/unknown_field",
	}, statuses(resp))
	seen := r.others.seen()[2:]
	require.True(t, seen[0].req.(*workv1.GetWorkItemRequest).GetOmitTodoList())
	require.False(t, seen[1].req.(*workv1.GetWorkItemRequest).GetOmitTodoList())
	list := seen[2].req.(*workv1.ListWorkItemsRequest)
	require.EqualValues(t, 7, list.GetPageSize())
	require.Equal(t, workv1.WorkItemFilter_WORK_ITEM_FILTER_QUEUED, list.GetFilter())
	require.True(t, list.GetIncludeTodoList())
}

// A pick inside the turn rebinds the calls that follow (SPEC A6).
func TestA6_APickRebindsAndACompletionUnbinds(t *testing.T) {
	r, a := turn(t)
	r.on("PickWorkItem", func(_ context.Context, req proto.Message) (proto.Message, error) {
		return &workv1.PickWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: req.(*workv1.PickWorkItemRequest).
			GetWorkItemId()}}, nil
	})
	r.on("CompleteWorkItem", func(_ context.Context, req proto.Message) (proto.Message, error) {
		return &workv1.CompleteWorkItemResponse{
			WorkItem: &workv1.WorkItem{WorkItemId: req.(*workv1.CompleteWorkItemRequest).GetWorkItemId()},
		}, nil
	})
	resp := r.submit(a, 0, "",
		use("ExecCommand", "cmd", "a"),
		use("PickWorkItem", "work_item_id", "wi_1"),
		use("ExecCommand", "cmd", "b"),
		use("ExecCommand", "cmd", "c", "work_item_id", "wi_9"),
	)
	require.Equal(t, []string{"success", "success", "success", "success"}, statuses(resp))
	r.submit(a, 1, "", use("ExecCommand", "cmd", "d"), use("CompleteWorkItem", "work_item_id", "wi_1"),
		use("ExecCommand", "cmd", "e"))
	var bound []string
	for _, c := range r.others.seen() {
		if req, ok := c.req.(*taskv1.ExecCommandRequest); ok {
			bound = append(bound, req.GetCommand().GetCmd()+":"+req.GetWorkItemId())
		}
	}
	require.Equal(t, []string{"a:", "b:wi_1", "c:wi_9", "d:wi_1", "e:"}, bound)
	g := must.Value(r.service.GetTurn(r.operator(), &agentv1.GetTurnRequest{AgentId: "keeper", TurnId: a.GetTurn().
		GetTurnId()}))(t)
	require.Empty(t, g.GetTurn().GetBoundWorkItemId(), "what the turn began with stays")
	require.Equal(t, "wi_1", g.GetRounds()[1].GetWorkItemId())
	require.EqualValues(t, 7, g.GetTurn().GetMutations())
}

// null clears the reminder, as it clears the blocker, and the tool's schema allows it (SPEC W5.5).
func TestW5_AToolClearsTheReminder(t *testing.T) {
	r, a := turn(t)
	var got *workv1.UpdateWorkItemRequest
	r.on("UpdateWorkItem", func(_ context.Context, req proto.Message) (proto.Message, error) {
		got = req.(*workv1.UpdateWorkItemRequest)
		return &workv1.UpdateWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: "wi_1"}}, nil
	})
	resp := r.submit(a, 0, "", use("UpdateWorkItem", "work_item_id", "wi_1", "recheck_at", nil))
	require.Equal(t, []string{"success"}, statuses(resp))
	require.True(t, got.GetClearRecheckAt())
	require.Nil(t, got.GetRecheckAt())
	require.False(t, got.GetClearBlockedBy())
	resp = r.submit(a, 1, "", use("UpdateWorkItem", "work_item_id", "wi_1", "recheck_at", "2026-03-01T13:00:00Z"))
	require.Equal(t, []string{"success"}, statuses(resp))
	require.False(t, got.GetClearRecheckAt())
	list := must.Value(r.service.ListTools(r.runner(), &agentv1.ListToolsRequest{AgentId: "keeper"}))(t)
	for _, spec := range list.GetTools() {
		if spec.GetName() == "UpdateWorkItem" {
			properties := spec.GetInputSchema().GetFields()["properties"].GetStructValue().GetFields()
			require.Equal(t, []any{"string", "null"}, properties["recheck_at"].GetStructValue().AsMap()["type"])
			require.NotContains(t, properties, "clear_recheck_at")
		}
	}
}

// An update that changed nothing is a success that says so, and no mutation of the turn (SPEC W5.4).
func TestW5_AnUnchangedItemIsNoMutation(t *testing.T) {
	r, a := turn(t)
	r.on("UpdateWorkItem", func(_ context.Context, req proto.Message) (proto.Message, error) {
		same := req.(*workv1.UpdateWorkItemRequest).GetObjective() == "same"
		return &workv1.UpdateWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: "wi_1"}, Unchanged: same}, nil
	})
	resp := r.submit(a, 0, "",
		use("UpdateWorkItem", "work_item_id", "wi_1", "objective", "same"),
		use("UpdateWorkItem", "work_item_id", "wi_1", "objective", "other"),
		use("UpdateWorkItem", "work_item_id", "wi_1", "objective", "same"))
	require.Equal(t, []string{"success", "success", "success"}, statuses(resp))
	require.Equal(t, "UpdateWorkItem changed nothing: the record has these values already: wi_1",
		resp.GetToolResults()[0].GetSummaryText())
	require.True(t, resp.GetToolResults()[0].GetResult().GetFields()["unchanged"].GetBoolValue())
	require.Equal(t, "UpdateWorkItem succeeded: wi_1", resp.GetToolResults()[1].GetSummaryText())
	g := must.Value(r.service.GetTurn(r.operator(), &agentv1.GetTurnRequest{AgentId: "keeper", TurnId: a.GetTurn().
		GetTurnId()}))(t)
	require.EqualValues(t, 1, g.GetTurn().GetMutations())
}

// WaitFor ends the turn; what stands behind it in the round is not run (SPEC A6).
func TestA6_WaitForEndsTheTurn(t *testing.T) {
	r, a := turn(t)
	r.on("WaitFor", func(context.Context, proto.Message) (proto.Message, error) {
		return &waitingv1.WaitForResponse{Wait: &waitingv1.Wait{WaitId: "wt_1"}}, nil
	})
	calls := []*agentv1.ToolCall{
		use("ListWorkItems"), use("WaitFor", "reason", "x", "wake", "operator_input"),
		use("CreateWorkItem", "objective", "late"),
	}
	resp := r.submit(a, 0, "", calls...)
	require.Equal(t, []string{"success", "success", "error/turn_ended"}, statuses(resp))
	require.True(t, resp.GetTurnEnded())
	require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_WAIT_FOR, resp.GetEndReason())
	require.Nil(t, resp.GetLeaseExpiresAt())
	require.Equal(t, []string{"ListWorkItems", "WaitFor"}, r.others.methods())
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_PROCESSED, r.message("keeper", a.GetMessage().GetMessageId()).
		GetState())
	require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_WAIT_FOR, r.finish(a, done).GetEndReason(),
		"a later FinishTurn changes nothing")
	again := r.submit(a, 0, "", calls...)
	require.True(t, again.GetTurnEnded())
	require.Equal(t, statuses(resp), statuses(again))
}

func TestA6_ARefusedWaitForEndsNothing(t *testing.T) {
	r, a := turn(t)
	r.on("WaitFor", func(context.Context, proto.Message) (proto.Message, error) {
		return nil, fault.InvalidArgument.New("no")
	})
	resp := r.submit(a, 0, "", use("WaitFor"), use("ListWorkItems"))
	require.Equal(t, []string{"error/invalid_argument", "success"}, statuses(resp))
	require.False(t, resp.GetTurnEnded())
}

// Promotion, row by row (SPEC W6, W7).
func TestW7_Promotion(t *testing.T) {
	type completion struct {
		current, already bool
		brief            string
		err              error
	}
	for name, c := range map[string]struct {
		text        string
		completions []completion
		promoted    string
		notice      string
	}{
		"text and one completion of the item in focus": {"done", []completion{{current: true}}, "wi_0", ""},
		"no text":               {"  \n", []completion{{current: true}}, "", "report_missing"},
		"not the item in focus": {"done", []completion{{}}, "wi_0", ""},
		"two completions":       {"done", []completion{{current: true}, {}}, "", "multiple_completions"},
		"one that failed beside one": {"done", []completion{
			{err: fault.BlockingExecution.New("no")},
			{current: true},
		}, "wi_1", ""},
		"only a failed one": {
			"done",
			[]completion{{err: fault.BlockingExecution.New("no")}},
			"",
			"",
		},
		"repeated on an item without report":  {"done", []completion{{already: true}}, "wi_0", ""},
		"repeated on an item with its report": {"done", []completion{{already: true, brief: "brf_1"}}, "", ""},
		"the same beside a completion": {
			"done",
			[]completion{{already: true, brief: "brf_1"}, {current: true}},
			"wi_1", "",
		},
		"text and no completion":               {"progress", nil, "", ""},
		"no text and two completions":          {"", []completion{{current: true}, {}}, "", "multiple_completions"},
		"repeated without report, and no text": {"", []completion{{already: true}}, "", "report_missing"},
	} {
		t.Run(name, func(t *testing.T) {
			r, a := turn(t)
			n := 0
			r.on("CompleteWorkItem", func(_ context.Context, req proto.Message) (proto.Message, error) {
				out := c.completions[n]
				n++
				if out.err != nil {
					return nil, out.err
				}
				return &workv1.CompleteWorkItemResponse{
					WorkItem: &workv1.WorkItem{
						WorkItemId:    req.(*workv1.CompleteWorkItemRequest).GetWorkItemId(),
						ResultBriefId: out.brief,
					},
					WasCurrent: out.current, AlreadyCompleted: out.already,
					Warnings: []*workv1.Warning{{Kind: workv1.WarningKind_WARNING_KIND_UNFINISHED_TODOS}},
				}, nil
			})
			var calls []*agentv1.ToolCall
			for i := range c.completions {
				calls = append(calls, use("CompleteWorkItem", "work_item_id", fmt.Sprint("wi_", i)))
			}
			calls = append(calls, use("ListWorkItems")) // it still runs: the promotion comes after the last call
			resp := r.submit(a, 0, c.text, calls...)
			require.Equal(t, c.promoted, resp.GetPromotedWorkItemId())
			require.Equal(t, c.promoted != "", resp.GetTurnEnded())
			require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, resp.GetToolResults()[len(calls)-1].GetStatus())
			if c.notice == "" {
				require.Empty(t, resp.GetNotices())
			} else {
				require.Len(t, resp.GetNotices(), 1)
				require.True(t, strings.HasPrefix(resp.GetNotices()[0], c.notice+":"), resp.GetNotices()[0])
			}
			r.others.mu.Lock()
			reports := r.others.reports
			r.others.mu.Unlock()
			if c.promoted == "" {
				require.Empty(t, reports)
				require.Empty(t, resp.GetEndReason())
				return
			}
			require.Len(t, reports, 1)
			require.Equal(t, c.text, reports[0].GetText())
			require.Equal(t, c.promoted, reports[0].GetWorkItemId())
			require.Equal(t, a.GetTurn().GetRunId()+"/0/promote", reports[0].GetRequestId())
			require.Equal(t, workv1.WarningKind_WARNING_KIND_UNFINISHED_TODOS, reports[0].GetWarnings()[0].GetKind(),
				"warnings are kept with the report")
			require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_COMPLETION_PROMOTED, resp.GetEndReason())
			require.Equal(t, agentv1.MessageState_MESSAGE_STATE_PROCESSED,
				r.message("keeper", a.GetMessage().GetMessageId()).GetState())
			require.Len(t, resp.GetToolResults()[len(calls)-2].GetWarnings(), 1)
			again := r.submit(a, 0, c.text, calls...)
			require.Equal(t, c.promoted, again.GetPromotedWorkItemId(), "the first answer, for who asks again")
			require.Len(t, r.others.reports, 1)
		})
	}
}

// A crash before the promotion: the repeated round, or the end of the turn,
// promotes what the recorded completion earned.
func TestW7_APromotionIsNotLost(t *testing.T) {
	for name, resume := range map[string]func(*testing.T, *rig, *agentv1.AcquireTurnResponse){
		"the round is repeated": func(_ *testing.T, r *rig, a *agentv1.AcquireTurnResponse) {
			r.submit(a, 0, "done", use("CompleteWorkItem", "work_item_id", "wi_1"))
		},
		"the turn is finished": func(_ *testing.T, r *rig, a *agentv1.AcquireTurnResponse) { r.finish(a, done) },
		"the runner is lost": func(_ *testing.T, r *rig, _ *agentv1.AcquireTurnResponse) {
			r.clk.Advance(runners.Term)
			r.eventually(func() bool { return r.facts("keeper").GetAgent().GetCurrentRunId() == "" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, a := turn(t)
			r.on("CompleteWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
				return &workv1.CompleteWorkItemResponse{
					WorkItem:   &workv1.WorkItem{WorkItemId: "wi_1"},
					WasCurrent: true,
				}, nil
			})
			r.others.set(func() {
				r.others.promote = func(*workv1.PromoteReportRequest) (*workv1.PromoteReportResponse, error) {
					return nil, fault.NotReady.New("starting")
				}
			})
			must.Refuse(r.trySubmit(a, 0, "done", use("CompleteWorkItem", "work_item_id", "wi_1")))(t, fault.NotReady)
			r.restart()
			r.others.set(func() { r.others.promote = nil })
			resume(t, r, a)
			require.Len(t, r.others.reports, 1)
			require.Equal(t, "done", r.others.reports[0].GetText())
		})
	}
}

// A crash after the work plane completed an item and before the result was
// recorded: the item's history tells whether the call landed, and nothing is
// run again (SPEC A6, W7).
func TestW7_ACompletionThatLandedUnrecordedKeepsItsReport(t *testing.T) {
	completed := func(requestID string) *workv1.WorkItemMutation {
		return &workv1.WorkItemMutation{EventType: "work_item_completed", RequestId: requestID}
	}
	released := &workv1.WorkItemMutation{EventType: "focus_released"}
	for name, c := range map[string]struct {
		history  func(requestID string) []*workv1.WorkItemMutation
		promoted bool
	}{
		"it landed": {func(id string) []*workv1.WorkItemMutation {
			return []*workv1.WorkItemMutation{released, completed(id)}
		}, true},
		"it landed out of focus": {func(id string) []*workv1.WorkItemMutation {
			return []*workv1.WorkItemMutation{completed(id)}
		}, true},
		"it did not": {
			func(string) []*workv1.WorkItemMutation { return []*workv1.WorkItemMutation{} },
			false,
		},
		"somebody else completed it": {func(string) []*workv1.WorkItemMutation {
			return []*workv1.WorkItemMutation{released, completed("another")}
		}, false},
		"there is no such item": {func(string) []*workv1.WorkItemMutation { return nil }, false},
	} {
		for _, lost := range []bool{false, true} {
			r, a := turn(t)
			calls := []*agentv1.ToolCall{use("CompleteWorkItem", "work_item_id", "wi_1")}
			if lost { // the call names no item: it is that of the turn
				r.on("PickWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
					return &workv1.PickWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: "wi_1"}}, nil
				})
				calls = []*agentv1.ToolCall{use("PickWorkItem", "work_item_id", "wi_1"), use("CompleteWorkItem")}
			}
			ctx, crash := context.WithCancel(r.runner())
			r.on("CompleteWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
				crash()
				return &workv1.CompleteWorkItemResponse{
					WorkItem:   &workv1.WorkItem{WorkItemId: "wi_1"},
					WasCurrent: true,
				}, nil
			})
			require.Error(t, must.Err(r.service.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
				AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(), Text: "done",
				ToolCalls: calls,
			})), name)
			r.restart()
			r.others.set(
				func() { r.others.history = c.history(fmt.Sprintf("%s/0/%d", a.GetTurn().GetRunId(), len(calls)-1)) })
			if lost {
				r.clk.Advance(runners.Term)
				r.eventually(func() bool { return r.facts("keeper").GetAgent().GetCurrentRunId() == "" })
			} else {
				r.finish(a, done)
			}
			require.Len(t, r.others.seen(), len(calls), "%s: nothing is run again", name)
			require.Equal(t, c.promoted, len(r.others.reports) == 1, "%s, lost: %v", name, lost)
		}
	}
}

// An interjection reaches the running turn at its next round, and once.
func TestA9_InterjectionReachesTheRunningTurn(t *testing.T) {
	r, a := turn(t)
	r.submit(a, 0, "thinking")
	first, second := r.send("keeper", "stop that", interject), r.send("keeper", "and this", interject)
	resp := r.submit(a, 1, "still thinking")
	require.Len(t, resp.GetInterjections(), 2)
	require.Equal(t, []string{first, second}, []string{
		resp.GetInterjections()[0].GetMessageId(),
		resp.GetInterjections()[1].GetMessageId(),
	})
	require.Empty(t, r.submit(a, 2, "well").GetInterjections())

	// The answer may have been lost: who asks again hears it again.
	r.restart()
	again := r.submit(a, 1, "still thinking")
	require.Len(t, again.GetInterjections(), 2)
	r.finish(a, done)
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_INTERJECTED, r.message("keeper", first).GetState())
	require.True(t, r.poll("keeper").GetPending(), "it was heard, no turn of its own follows")
}

func TestA9_AnInterjectionAfterTheEndIsTheNextTurn(t *testing.T) {
	for name, end := range map[string]func(*rig, *agentv1.AcquireTurnResponse){
		"finished": func(r *rig, a *agentv1.AcquireTurnResponse) { r.finish(a, done) },
		"by WaitFor": func(r *rig, a *agentv1.AcquireTurnResponse) {
			r.on("WaitFor", func(context.Context, proto.Message) (proto.Message, error) {
				return &waitingv1.WaitForResponse{}, nil
			})
			require.True(r.t, r.submit(a, 0, "", use("WaitFor", "reason", "x", "wake", "external")).GetTurnEnded())
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, a := turn(t)
			messageID := r.send("keeper", "wait", interject)
			end(r, a)
			require.Equal(t, messageID, r.take("keeper").GetMessage().GetMessageId())
		})
	}
}

// What was interjected into a run that was lost is heard again.
func TestA9_AnInterjectionSurvivesALostRun(t *testing.T) {
	r, a := turn(t)
	first, second := r.send("keeper", "one", interject), r.send("keeper", "two", interject)
	require.Len(t, r.submit(a, 0, "x").GetInterjections(), 2)
	r.clk.Advance(runners.Term)
	r.eventually(func() bool { return r.facts("keeper").GetAgent().GetCurrentRunId() == "" })
	b := r.take("keeper")
	require.Equal(t, first, b.GetMessage().GetMessageId())
	require.Len(t, b.GetInterjections(), 1)
	require.Equal(t, second, b.GetInterjections()[0].GetMessageId())
	r.finish(b, done)
	require.Equal(t, a.GetMessage().GetMessageId(), r.take("keeper").GetMessage().GetMessageId())
}

func TestX8_RoundLimits(t *testing.T) {
	r, a := turn(t)
	const limit = 256 << 10
	many := make([]*agentv1.ToolCall, 65)
	for i := range many {
		many[i] = use("ListWorkItems")
	}
	must.Refuse(r.trySubmit(a, 0, strings.Repeat("x", limit+1)))(t, fault.LimitExceeded)
	must.Refuse(r.trySubmit(a, 0, "", many...))(t, fault.LimitExceeded)
	must.Refuse(r.trySubmit(a, 0, "", &agentv1.ToolCall{}))(t, fault.InvalidArgument)
	must.Refuse(r.trySubmit(a, 0, "", &agentv1.ToolCall{Name: "ListWorkItems", CallId: "c"},
		&agentv1.ToolCall{Name: "ListWorkItems", CallId: "c"}))(t, fault.InvalidArgument)
	r.submit(a, 0, strings.Repeat("x", limit-1))
	r.submit(a, 1, strings.Repeat("x", limit), many[:64]...)
}

// A plane that starts anew fails no call: the runtime asks it again.
func TestA6_AnUnreachablePlaneIsAskedAgain(t *testing.T) {
	r, a := turn(t)
	n := 0
	r.on("CreateWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		if n++; n < 3 {
			return nil, fault.NotReady.New("starting")
		}
		return &workv1.CreateWorkItemResponse{}, nil
	})
	require.Equal(t, []string{"success"}, statuses(r.submit(a, 0, "", use("CreateWorkItem", "objective", "x"))))
	seen := r.others.seen()
	require.Len(t, seen, 3)
	require.Equal(t, seen[0].requestID, seen[2].requestID)
}

// The calls of a round may take longer than a lease (SPEC T1): a runner that
// holds the line is alive.
func TestX12_ALongCallKeepsItsLease(t *testing.T) {
	r, a := turn(t)
	started, proceed := make(chan struct{}), make(chan struct{})
	r.on("ExecCommand", func(context.Context, proto.Message) (proto.Message, error) {
		close(started)
		<-proceed
		return &taskv1.ExecCommandResponse{}, nil
	})
	got := make(chan error, 1)
	go func() {
		_, err := r.trySubmit(a, 0, "", use("ExecCommand", "cmd", "make"))
		got <- err
	}()
	<-started
	for range 3 {
		r.clk.Advance(runners.Term)
		r.clk.AwaitTimers(1)
	}
	close(proceed)
	require.NoError(t, <-got)
	require.Equal(t, a.GetTurn().GetRunId(), r.facts("keeper").GetAgent().GetCurrentRunId())
	r.finish(a, done)
}
