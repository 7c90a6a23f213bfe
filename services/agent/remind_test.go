package agent

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/tools"
	"quartet/services/agent/turns"
)

// bound returns a rig with an open turn of keeper that is bound to wi_1.
func bound(t *testing.T, it *workv1.WorkItem) (*rig, *agentv1.AcquireTurnResponse) {
	r := newRig(t)
	r.spawn("keeper")
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{AgentId: "keeper", Current: &workv1.WorkItem{WorkItemId: "wi_1"}}, nil
		}
		r.others.item = func() *workv1.WorkItem { return it }
	})
	answer := func(_ context.Context, req proto.Message) (proto.Message, error) {
		id := req.(interface{ GetWorkItemId() string }).GetWorkItemId()
		if strings.HasPrefix(id, "no_") {
			return nil, fault.NotFound.New("no such item")
		}
		return &workv1.UpdateWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: id}}, nil
	}
	r.on("UpdateWorkItem", answer)
	r.on("GetWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.GetWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: "wi_1"}}, nil
	})
	r.on("PickWorkItem", func(_ context.Context, req proto.Message) (proto.Message, error) {
		return &workv1.PickWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: req.(*workv1.PickWorkItemRequest).
			GetWorkItemId()}}, nil
	})
	r.send("keeper", "go", normal)
	return r, r.take("keeper")
}

var openItem = &workv1.WorkItem{
	WorkItemId: "wi_1", Objective: "ship\nit", State: workv1.WorkItemState_WORK_ITEM_STATE_OPEN,
	TodoList: []*workv1.TodoItem{
		{Text: "build", State: workv1.TodoState_TODO_STATE_COMPLETED},
		{Text: "test", State: workv1.TodoState_TODO_STATE_IN_PROGRESS},
		{Text: "publish", State: workv1.TodoState_TODO_STATE_PENDING},
	},
}

// kinds returns the reminders by the number of the round whose answer had them,
// counted from 1.
func kinds(r *rig, a *agentv1.AcquireTurnResponse, rounds int, calls map[int]*agentv1.ToolCall) map[int]string {
	got := map[int]string{}
	for i := range rounds {
		var cs []*agentv1.ToolCall
		if c := calls[i+1]; c != nil {
			cs = append(cs, c)
		}
		resp := r.submit(a, int32(i), "thinking", cs...)
		for _, n := range resp.GetNotices() {
			kind, _, _ := strings.Cut(n, ":")
			got[i+1] += kind
		}
	}
	return got
}

func TestW11_Reminders(t *testing.T) {
	update := use("UpdateWorkItem", "work_item_id", "wi_1", "objective", "ship")
	todos := use("UpdateWorkItem", "work_item_id", "wi_1", "todo_list", []any{})
	every := func(step int, c *agentv1.ToolCall) map[int]*agentv1.ToolCall {
		out := map[int]*agentv1.ToolCall{}
		for i := step; i < 100; i += step {
			out[i] = c
		}
		return out
	}
	done := proto.CloneOf(openItem)
	done.State = workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED
	finished := proto.CloneOf(openItem)
	finished.TodoList = finished.GetTodoList()[:1]
	for name, c := range map[string]struct {
		item   *workv1.WorkItem
		rounds int
		calls  map[int]*agentv1.ToolCall
		want   map[int]string
	}{
		"nine rounds of silence": {openItem, 9, nil, map[int]string{}},
		"every ten rounds": {openItem, 35, nil, map[int]string{
			10: turns.RemindWorkItem,
			20: turns.RemindWorkItem, 30: turns.RemindWorkItem,
		}},
		"a write begins the count again": {
			openItem, 25,
			map[int]*agentv1.ToolCall{9: todos},
			map[int]string{19: turns.RemindWorkItem},
		},
		"the pause holds after a write": {
			openItem, 32,
			map[int]*agentv1.ToolCall{11: todos},
			map[int]string{10: turns.RemindWorkItem, 21: turns.RemindWorkItem, 31: turns.RemindWorkItem},
		},
		"reading is no write": {openItem, 10, map[int]*agentv1.ToolCall{
			5: use("GetWorkItem", "work_item_id", "wi_1"),
		}, map[int]string{10: turns.RemindWorkItem}},
		"a write that failed is none": {
			openItem, 10,
			map[int]*agentv1.ToolCall{
				5: use("UpdateWorkItem", "work_item_id", "no_1", "objective", "x"),
			},
			map[int]string{10: turns.RemindWorkItem},
		},
		"another item's is none": {
			openItem, 10,
			map[int]*agentv1.ToolCall{
				5: use("UpdateWorkItem", "work_item_id", "wi_2", "objective", "x"),
			},
			map[int]string{10: turns.RemindWorkItem},
		},
		"running commands are no write": {
			openItem, 10, every(1, use("ExecCommand", "cmd", "make")),
			map[int]string{10: turns.RemindWorkItem},
		},
		"todos left behind": {
			openItem, 25, every(3, update),
			map[int]string{10: turns.RemindTodoList, 20: turns.RemindTodoList},
		},
		"todos kept up":                    {openItem, 25, every(3, todos), map[int]string{}},
		"no todo is left to be stale":      {finished, 25, every(3, update), map[int]string{}},
		"the item was completed meanwhile": {done, 25, nil, map[int]string{}},
		"the item is gone":                 {nil, 25, nil, map[int]string{}},
		"a pick binds the turn to another": {openItem, 25, map[int]*agentv1.ToolCall{
			8: use("PickWorkItem", "work_item_id", "wi_1"),
		}, map[int]string{18: turns.RemindWorkItem}},
		"a turn that has left every item": {openItem, 25, map[int]*agentv1.ToolCall{
			8: use("CompleteWorkItem", "work_item_id", "wi_1"),
		}, map[int]string{}},
		"both are due: the item is named once": {
			openItem, 12,
			map[int]*agentv1.ToolCall{1: update},
			map[int]string{10: turns.RemindTodoList},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, a := bound(t, c.item)
			r.on("CompleteWorkItem", func(_ context.Context, req proto.Message) (proto.Message, error) {
				// It has its report, so the turn goes on.
				return &workv1.CompleteWorkItemResponse{
					WorkItem: &workv1.WorkItem{WorkItemId: "wi_1", ResultBriefId: "brf_1"}, AlreadyCompleted: true,
				}, nil
			})
			if c.item == nil {
				r.others.set(func() { r.others.item = nil })
			}
			got := kinds(r, a, c.rounds, c.calls)
			delete(got, 8) // the completion's own notice
			require.Equal(t, c.want, got)
		})
	}
}

// A reminder names the item that the turn is bound to and what to do about it;
// who repeats the round hears it again, also after a restart.
func TestW11_AReminderSaysWhatToDo(t *testing.T) {
	r, a := bound(t, openItem)
	for i := range 9 {
		require.Empty(t, r.submit(a, int32(i), "thinking").GetNotices())
	}
	first := r.submit(a, 9, "thinking").GetNotices()
	require.Len(t, first, 1)
	require.Equal(t, "stale_work_item: 10 rounds have passed without a change of work item wi_1 (ship it). "+
		"If it advanced, send its whole current todo_list with UpdateWorkItem; if it cannot go on, set blocked_by or "+
		"plan_status needs_input, or call WaitFor; "+
		"if its objective is reached, write the report and call CompleteWorkItem in the same round; if this is other "+
		"work, pick or create that item."+
		"\n- [in_progress] test\n- [pending] publish", first[0])
	r.restart()
	r.others.set(func() {
		r.others.item = func() *workv1.WorkItem { return &workv1.WorkItem{Objective: "changed since"} }
	})
	require.Equal(t, first, r.submit(a, 9, "thinking").GetNotices())
	require.Empty(t, r.submit(a, 10, "thinking").GetNotices(), "the pause counts across a restart")
}

// A round is the same round only with all it said (SPEC X2).
func TestX2_ARoundUnderAUsedIndexIsCompared(t *testing.T) {
	r, a := turn(t)
	round := func() *agentv1.SubmitRoundRequest {
		s := must.Value(structpb.NewStruct(map[string]any{"exit_code": 0, "ratio": 0.1}))(t)
		return &agentv1.SubmitRoundRequest{
			AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(), Text: "text",
			LocalToolResults: []*agentv1.ToolResult{
				{CallId: "c1", ToolName: "Shell", Status: agentv1.ToolStatus_TOOL_STATUS_SUCCESS, Result: s},
			},
			Usage: &agentv1.TokenUsage{InputTokens: 10, OutputTokens: 2},
		}
	}
	first := must.Value(r.service.SubmitRound(r.runner(), round()))(t)
	for range 2 {
		require.Equal(t, statuses(first), statuses(must.Value(r.service.SubmitRound(r.runner(), round()))(t)))
		for name, change := range map[string]func(*agentv1.SubmitRoundRequest){
			"another local result": func(q *agentv1.SubmitRoundRequest) {
				q.LocalToolResults[0].Status = tools.StatusError
			},
			"one result more": func(q *agentv1.SubmitRoundRequest) {
				q.LocalToolResults = append(q.LocalToolResults, &agentv1.ToolResult{})
			},
			"no local result": func(q *agentv1.SubmitRoundRequest) { q.LocalToolResults = nil },
			"another usage":   func(q *agentv1.SubmitRoundRequest) { q.Usage.OutputTokens = 3 },
			"no usage":        func(q *agentv1.SubmitRoundRequest) { q.Usage = nil },
		} {
			q := round()
			change(q)
			must.Refuse(r.service.SubmitRound(r.runner(), q))(t, fault.RequestIDReused, name)
		}
		r.restart()
	}

	// No usage and a usage of nothing are one, also after a restart.
	must.Value(r.service.SubmitRound(r.runner(), &agentv1.SubmitRoundRequest{AgentId: "keeper", TurnId: a.GetTurn().
		GetTurnId(), RunId: a.GetTurn().GetRunId(), RoundIndex: 1, Usage: &agentv1.TokenUsage{}}))(t)
	r.restart()
	must.Value(r.service.SubmitRound(r.runner(), &agentv1.SubmitRoundRequest{AgentId: "keeper", TurnId: a.GetTurn().
		GetTurnId(), RunId: a.GetTurn().GetRunId(), RoundIndex: 1}))(t)
}
