package agent

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/services/agent/children"
	"quartet/services/agent/tools"
)

// exampleOf returns a value that a schema allows.
func exampleOf(s *structpb.Struct) any {
	if e := s.GetFields()["enum"].GetListValue().GetValues(); len(e) > 0 {
		return e[0].GetStringValue()
	}
	kind := s.GetFields()["type"].GetStringValue()
	if l := s.GetFields()["type"].GetListValue().GetValues(); len(l) > 0 {
		kind = l[0].GetStringValue()
	}
	switch kind {
	case "integer", "number":
		return 1
	case "boolean":
		return true
	case "array":
		return []any{exampleOf(s.GetFields()["items"].GetStructValue())}
	case "object":
		out := map[string]any{}
		for name, p := range s.GetFields()["properties"].GetStructValue().GetFields() {
			out[name] = exampleOf(p.GetStructValue())
		}
		return out
	}
	switch {
	case s.GetFields()["pattern"] != nil:
		return "1.5s"
	case s.GetFields()["format"] != nil:
		return "2026-03-01T12:00:00Z"
	case s.GetFields()["contentEncoding"] != nil:
		return "AAEC"
	}
	return "x"
}

// Every property that a schema offers is one that the call takes, with a value
// of the schema's type, and every one is described.
func TestC4_SchemasSayWhatCallsTake(t *testing.T) {
	for i, spec := range tools.Specs() {
		tl := tools.Table[i]
		require.Equal(t, tl.Name, spec.GetName())
		require.Greater(t, len(spec.GetDescription()), 10, spec.GetName())
		require.NotZero(t, spec.GetFamily(), spec.GetName())
		schema := spec.GetInputSchema().GetFields()
		require.False(t, schema["additionalProperties"].GetBoolValue())
		properties := schema["properties"].GetStructValue().GetFields()
		for _, r := range schema["required"].GetListValue().GetValues() {
			require.Contains(t, properties, r.GetStringValue(), "%s requires it", spec.GetName())
		}
		for name, p := range properties {
			require.NotEmpty(t, p.GetStructValue().GetFields()["description"].GetStringValue(),
				"%s.%s is not described", spec.GetName(), name)
			with := map[string]any{name: exampleOf(p.GetStructValue())}
			for _, r := range slices.Concat(tl.Required, tl.OneOf) {
				with[r] = exampleOf(properties[r].GetStructValue())
			}
			args := must.Value(structpb.NewStruct(with))(t)
			_, err := tl.Request(tools.Scope{Agent: plane.Key{Namespace: "acme", ID: "keeper"}, Remaining: time.Minute},
				args)
			require.NoError(t, err, "%s.%s", spec.GetName(), name)
			for _, r := range slices.Concat(tl.Required, tl.OneOf) {
				delete(with, r)
			}
			args = must.Value(structpb.NewStruct(with))(t)
			if _, err = tl.Request(tools.Scope{
				Agent:     plane.Key{Namespace: "acme", ID: "keeper"},
				Remaining: time.Minute,
			}, args); len(tl.Required)+len(tl.OneOf) > 0 {
				require.ErrorIs(t, err, fault.InvalidArgument, "%s without what it requires", spec.GetName())
			}
		}
		must.Value(json.Marshal(spec.GetInputSchema().AsMap()))(t)
	}
}

// What a profile lacks is neither offered nor run (SPEC A2, C4).
func TestC4_ToolsGoByProfile(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	all := must.Value(r.service.ListTools(r.operator(), &agentv1.ListToolsRequest{AgentId: "keeper"}))(t)
	require.Len(t, all.GetTools(), len(tools.Table))
	child := r.delegate(r.operator(), "one", "do it").GetAgentId()
	few := must.Value(r.service.ListTools(r.operator(), &agentv1.ListToolsRequest{AgentId: child}))(t)
	for _, tl := range few.GetTools() {
		require.Contains(t, children.ChildFamilies(), tl.GetFamily())
	}
	require.Less(t, len(few.GetTools()), len(tools.Table))
	resp := must.Value(r.service.CallTool(r.operator(), &agentv1.CallToolRequest{
		AgentId: child, Name: "SpawnAgent", Arguments: use("", "initial_message", "go").GetArguments(),
	}))(t)
	require.Equal(t, "tool_not_available", resp.GetResult().GetError().GetKind())
	require.NotContains(t, r.others.methods(), "SpawnAgent")
}

func (r *rig) callTool(ctx context.Context, requestID, text, name string, args ...any) *agentv1.CallToolResponse {
	r.t.Helper()
	return must.Value(r.service.CallTool(ctx, &agentv1.CallToolRequest{
		AgentId: "keeper", RequestId: requestID, Name: name, Arguments: use(name, args...).GetArguments(),
		RoundText: text,
	}))(r.t)
}

// Outside a turn a tool runs as its caller, under the caller's request id.
func TestC4_CallToolOutsideATurn(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	own := planetest.AsAgent(t.Context(), "keeper")
	resp := r.callTool(own, "once", "", "CreateWorkItem", "objective", "x")
	require.Equal(t, tools.StatusSuccess, resp.GetResult().GetStatus())
	c := r.others.seen()[0]
	require.Equal(t, "once", c.requestID)
	require.Equal(t, "agent/keeper", c.actor.Principal)
	require.Equal(t, "keeper", c.req.(*workv1.CreateWorkItemRequest).GetAgentId())
	require.Equal(t, "unknown_field", r.callTool(own, "", "", "CreateWorkItem", "nonsense", 1).GetResult().GetError().
		GetKind())
	require.Equal(t, "tool_not_available", r.callTool(own, "", "", "Nonsense").GetResult().GetError().GetKind())
	require.Len(t, r.others.seen(), 1)

	for _, bad := range []*agentv1.CallToolRequest{
		{AgentId: "nobody", Name: "ListWorkItems"},
		{AgentId: "keeper"},
		{AgentId: "", Name: "ListWorkItems"},
		{AgentId: "keeper", Name: "ListWorkItems", RoundText: string(make([]byte, fault.MaxRoundTextBytes+1))},
	} {
		require.Error(t, must.Err(r.service.CallTool(r.operator(), bad)))
	}
	must.Refuse(r.service.CallTool(planetest.AsAgent(t.Context(), "other"), &agentv1.CallToolRequest{
		AgentId: "keeper", Name: "ListWorkItems",
	}))(t, fault.PermissionDenied)
}

// inFocus makes the work plane say which item is in focus, "" for none.
func (r *rig) inFocus(itemID string) {
	r.on("GetWorkItem", func(_ context.Context, req proto.Message) (proto.Message, error) {
		if itemID == "" {
			return nil, fault.Invalid("work_item_id", "", "must be given: no work item is in focus")
		}
		return &workv1.GetWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: itemID}}, nil
	})
}

// last returns the work item that the last call of a tool names.
func (r *rig) last(method string) string {
	r.t.Helper()
	for _, c := range slices.Backward(r.others.seen()) {
		if c.method == method {
			return c.req.(interface{ GetWorkItemId() string }).GetWorkItemId()
		}
	}
	require.FailNow(r.t, "not called", method)
	return ""
}

// Outside of a turn a call that names no item is about the one in focus. A repetition is about the
// same item, wherever the focus is by then, whether or not the first call came to its end, and
// over a restart; the same id with other arguments is refused (SPEC A13.2).
func TestA13_ARepeatedCallKeepsItsItem(t *testing.T) {
	for name, args := range map[string][]any{
		"ExecCommand": {"cmd", "true"}, "CreateTimer": {"after", "1h"}, "CreateWait": {"source", "ci"},
		"CreateExternalTrigger": {"description", "ci"}, "CompleteWorkItem": {},
	} {
		t.Run(name, func(t *testing.T) {
			const one, two = "wi_01h455vb4pex5vsknk084sn02q", "wi_01h455vb4pex5vsknk084sn02r"
			r := newRig(t)
			r.spawn("keeper")
			own := planetest.AsAgent(t.Context(), "keeper")
			call := func(requestID string, more ...any) *agentv1.ToolResult {
				return r.callTool(own, requestID, "", name, slices.Concat(args, more)...).GetResult()
			}
			r.inFocus(one)
			r.on(name, func(context.Context, proto.Message) (proto.Message, error) {
				return nil, fault.InternalError.New("it broke")
			})
			require.NotNil(t, call("cut off").GetError())
			require.Equal(t, one, r.last(name))
			r.on(name, nil)
			call("done")
			call("")
			require.Equal(t, one, r.last(name))
			for range 2 {
				r.inFocus(two)
				for _, requestID := range []string{"cut off", "done"} {
					require.Nil(t, call(requestID).GetError())
					require.Equal(t, one, r.last(name), "the focus has moved since")
				}
				r.inFocus("")
				call("done")
				require.Equal(t, one, r.last(name), "the item has been completed since")
				r.restart()
			}
			r.inFocus(two)
			call("new")
			require.Equal(t, two, r.last(name))
			call("named", "work_item_id", one)
			require.Equal(t, one, r.last(name))
			call("")
			require.Equal(t, two, r.last(name))

			before := len(r.others.seen())
			other := r.callTool(own, "done", "", name,
				slices.Concat(args,
					[]any{
						map[string]string{
							"ExecCommand": "cmd", "CreateTimer": "description",
							"CreateWait": "condition", "CreateExternalTrigger": "description",
							"CompleteWorkItem": "expected_revision",
						}[name],
						map[bool]any{true: 7, false: "other"}[name == "CompleteWorkItem"],
					})...)
			require.Equal(t, "request_id_reused", other.GetResult().GetError().GetKind())
			require.Len(t, r.others.seen(), before+1, "the focus was read, and nothing was called")

			r.inFocus("")
			none := call("none")
			if name == "CompleteWorkItem" {
				require.Equal(t, "invalid_argument", none.GetError().GetKind())
				require.Contains(t, none.GetError().GetMessage(), "no work item is in focus")
				r.inFocus(one)
				require.Nil(t, call("none").GetError(), "a refusal is not remembered")
				require.Equal(t, one, r.last(name))
				return
			}
			require.Empty(t, r.last(name), "then it is about the agent")
			r.inFocus(one)
			call("none")
			require.Empty(t, r.last(name))
		})
	}
}

// A call whose arguments are refused, or that the caller may not make, reads no focus and records nothing.
func TestA13_ACallThatIsRefusedTakesNoFocus(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	before := len(r.events())
	require.NotNil(t, r.callTool(planetest.AsAgent(t.Context(), "keeper"), "r1", "", "CreateTimer", "nonsense", 1).
		GetResult().GetError())
	require.Empty(t, r.others.seen())
	require.Len(t, r.events(), before)
}

// Text beside a completion outside a turn is its report (SPEC C4, W7).
func TestC4_W7_RoundTextIsTheReport(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.on("CompleteWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.CompleteWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: "wi_1"}, WasCurrent: true}, nil
	})
	own := planetest.AsAgent(t.Context(), "keeper")
	resp := r.callTool(own, "once", "it is done", "CompleteWorkItem", "work_item_id", "wi_1")
	require.Equal(t, "wi_1", resp.GetPromotedWorkItemId())
	require.Len(t, r.others.reports, 1)
	require.Equal(t, "it is done", r.others.reports[0].GetText())
	r.callTool(own, "once", "it is done", "CompleteWorkItem", "work_item_id", "wi_1")
	require.Equal(t, r.others.reports[0].GetRequestId(), r.others.reports[1].GetRequestId(),
		"a repetition promotes nothing new")
	silent := r.callTool(own, "", "", "CompleteWorkItem", "work_item_id", "wi_1")
	require.Empty(t, silent.GetPromotedWorkItemId())
	require.Equal(t, "report_missing", silent.GetResult().GetWarnings()[0].GetFields()["kind"].GetStringValue())
}

// The report is that of the named item, wherever the focus is (SPEC W7.2).
func TestW7_RoundTextOfAnItemOutOfFocus(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.on("CompleteWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.CompleteWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: "wi_2"}}, nil
	})
	resp := r.callTool(planetest.AsAgent(t.Context(), "keeper"), "", "text", "CompleteWorkItem", "work_item_id", "wi_2")
	require.Equal(t, "wi_2", resp.GetPromotedWorkItemId())
	require.Empty(t, resp.GetResult().GetWarnings())
	require.Len(t, r.others.reports, 1)
	require.Equal(t, "text", r.others.reports[0].GetText())
}

// A command that ends within its call is answered once: no message tells it
// again, whichever of the two comes first (SPEC T1, T5).
func TestT1_AnAnsweredCommandBringsNoMessage(t *testing.T) {
	ended := func(id string) *journal.Event {
		return &journal.Event{Namespace: "acme", AgentID: "keeper", TaskID: id, Payload: &taskv1.TaskCompleted{
			Task: &taskv1.Task{TaskId: id, AgentId: "keeper", State: taskv1.TaskState_TASK_STATE_COMPLETED},
		}}
	}
	for name, inTurn := range map[string]bool{"in a turn": true, "outside": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.spawn("keeper")
			r.send("keeper", "go", normal)
			a := r.take()
			id, outcome, early := "", taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED, false
			r.on("ExecCommand", func(context.Context, proto.Message) (proto.Message, error) {
				if early {
					r.hear(ended(id))
				}
				return &taskv1.ExecCommandResponse{Outcome: outcome, Task: &taskv1.Task{TaskId: id}}, nil
			})
			round := int32(0)
			exec := func() {
				if inTurn {
					r.submit(a, round, "", use("ExecCommand", "cmd", "true"))
					round++
					return
				}
				r.callTool(planetest.AsAgent(t.Context(), "keeper"), "", "", "ExecCommand", "cmd", "true")
			}
			id = "tsk_late"
			exec()
			r.hear(ended(id))
			id, early = "tsk_early", true
			exec()
			require.Zero(t, r.facts("keeper").GetQueued())
			r.restart()
			r.hear(ended("tsk_late"))
			require.Zero(t, r.facts("keeper").GetQueued(), "it is remembered")
			id, outcome, early = "tsk_promoted", taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK, false
			exec()
			r.hear(ended(id))
			require.EqualValues(t, 1, r.facts("keeper").GetQueued(), "what went on as a task brings its message")
			r.hear(ended(id))
			require.EqualValues(t, 1, r.facts("keeper").GetQueued())
		})
	}
}
