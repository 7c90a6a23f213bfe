package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/tools"
	"quartet/services/agent/turns"
)

// X5, C4: a call that makes no sense has one result that says what is wrong with
// which value; no plane hears of it, and the turn goes on.
func TestX5_CallsThatMakeNoSense(t *testing.T) {
	child := func(r *rig) *agentv1.AcquireTurnResponse {
		r.endsHandles()
		return r.take(r.delegate(r.operator(), "", "work").GetAgentId())
	}
	keeper := func(r *rig) *agentv1.AcquireTurnResponse {
		r.send("keeper", "go", normal)
		return r.take("keeper")
	}
	for name, c := range map[string]struct {
		as    func(*rig) *agentv1.AcquireTurnResponse
		call  *agentv1.ToolCall
		kind  string
		value string // that the message names
	}{
		"a number for a text": {keeper, use("CreateWorkItem", "objective", 5), "invalid_argument", "objective"},
		"a text for a list": {
			keeper, use("UpdateWorkItem", "todo_list", "all of it"), "invalid_argument",
			"todo_list",
		},
		"a list for a text": {keeper, use("ExecCommand", "cmd", []any{"ls"}), "invalid_argument", "cmd"},
		"a text for a duration": {
			keeper, use("ExecCommand", "cmd", "ls", "yield_time", "soon"),
			"invalid_argument", "yield_time",
		},
		"an unknown state": {
			keeper, use("ListWorkItems", "filter", "favourites"), "invalid_argument",
			"favourites",
		},
		"an unknown argument": {
			keeper, use("CreateWorkItem", "objective", "x", "colour", "red"),
			"unknown_field", "colour",
		},
		"another one's agent": {
			keeper, use("CreateWorkItem", "objective", "x", "agent_id", "other"),
			"unknown_field", "agent_id",
		},
		"a request id of its own": {
			keeper, use("CreateWorkItem", "objective", "x", "request_id", "mine"),
			"unknown_field", "request_id",
		},
		"an unknown tool": {keeper, use("DropTables"), "tool_not_available", "DropTables"},
		"a tool's name in disguise": {
			keeper, use("createworkitem", "objective", "x"), "tool_not_available",
			"createworkitem",
		},
		"a parent's tool for a child": {
			child, use("SpawnAgent", "initial_message", "x"), "tool_not_available",
			"SpawnAgent",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.spawn("keeper")
			a := c.as(r)
			calls := len(r.others.seen())
			res := r.submit(a, 0, "try", c.call).GetToolResults()
			require.Len(t, res, 1)
			require.Equal(t, c.kind, res[0].GetError().GetKind(), "%v", res[0])
			require.Contains(t, res[0].GetError().GetMessage(), c.value)
			require.Len(t, r.others.seen(), calls, "no plane heard of it")
			r.submit(a, 1, "go on")
		})
	}
}

// X5, X8, A6: a round that cannot be taken is refused whole and nothing of it is
// journaled: text of 256 KiB is the most there may be, rounds come in order, and
// a repeated one says the same.
func TestX8_RoundsThatAreNotTaken(t *testing.T) {
	r, a := turn(t)
	r.submit(a, 0, strings.Repeat("x", fault.MaxRoundTextBytes-1), use("ListWorkItems"))
	r.submit(a, 1, strings.Repeat("ä", fault.MaxRoundTextBytes/2))
	nul := &structpb.Struct{Fields: map[string]*structpb.Value{"filter": structpb.NewStringValue("all")}}
	before := len(r.events())
	nested := func(n int) *agentv1.ToolCall { // n below the arguments themselves
		deep := any("x")
		for range n {
			deep = []any{deep}
		}
		return use("CreateWorkItem", "objective", deep)
	}
	for name, c := range map[string]struct {
		index  int32
		text   string
		calls  []*agentv1.ToolCall
		want   fault.Reason
		naming string
	}{
		"a byte too many": {
			2, strings.Repeat("x", fault.MaxRoundTextBytes+1), nil, fault.LimitExceeded,
			"262145",
		},
		"5 MB of text":              {2, strings.Repeat("x", 5_000_000), nil, fault.LimitExceeded, "5000000"},
		"no text at all":            {2, "bad\xff", nil, fault.InvalidArgument, "text"},
		"a round too early":         {3, "x", nil, fault.InvalidArgument, "2"},
		"a round of the far future": {1 << 30, "x", nil, fault.InvalidArgument, "2"},
		"a round before the first":  {-1, "x", nil, fault.InvalidArgument, "-1"},
		"other text": {
			0, "x",
			[]*agentv1.ToolCall{use("ListWorkItems")},
			fault.RequestIDReused,
			"round 0",
		},
		"other calls": {0, strings.Repeat("x", fault.MaxRoundTextBytes-1), []*agentv1.ToolCall{
			{Name: "ListWorkItems", Arguments: nul},
		}, fault.RequestIDReused, "round 0"},
		"fewer calls": {
			0, strings.Repeat("x", fault.MaxRoundTextBytes-1), nil, fault.RequestIDReused,
			"round 0",
		},
		"a call without a name": {2, "x", []*agentv1.ToolCall{{}}, fault.InvalidArgument, "tool_calls[0].name"},
		"a name that is too long": {
			2, "x",
			[]*agentv1.ToolCall{use(strings.Repeat("n", 129))},
			fault.LimitExceeded,
			"129",
		},
		"one call id twice": {
			2, "x",
			[]*agentv1.ToolCall{{Name: "a", CallId: "1"}, {Name: "b", CallId: "1"}},
			fault.InvalidArgument, "unique",
		},
		"nested too deep": {
			2, "x",
			[]*agentv1.ToolCall{nested(tools.MaxNesting)},
			fault.InvalidArgument,
			"at most 32 deep",
		},
		"nested far too deep": {
			2, "x",
			[]*agentv1.ToolCall{nested(200)},
			fault.InvalidArgument,
			"at most 32 deep",
		},
		"too many calls": {
			2, "x", make([]*agentv1.ToolCall, turns.MaxCalls+1), fault.LimitExceeded,
			fmt.Sprint(turns.MaxCalls + 1),
		},
	} {
		_, err := r.trySubmit(a, c.index, c.text, c.calls...)
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, c.naming, name)
		require.Len(t, r.events(), before, name)
	}
	names := make([]*agentv1.ToolCall, turns.MaxCalls)
	for i := range names {
		names[i] = use(strings.Repeat("n", 128))
	}
	require.Len(t, r.submit(a, 2, "as many as there may be", names...).GetToolResults(), turns.MaxCalls)
	for i, n := range []int{tools.MaxNesting - 2, tools.MaxNesting - 1} {
		res := r.submit(a, int32(3+i), "as deep as it may be", nested(n)).GetToolResults()
		require.Equal(t, "invalid_argument", res[0].GetError().GetKind())
	}
	require.False(t, r.submit(a, 5, "and on").GetTurnEnded())
}
