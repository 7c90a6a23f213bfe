package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/tests/dev"
)

// TestA10_AForkInATurn has an agent fork a child in a round, on the real planes:
// the child sees the item that the round was bound to, with its plan, and the item
// that the plan refers to; of the third it sees nothing (SPEC A10).
func TestA10_AForkInATurn(t *testing.T) {
	s := dev.Start(t)
	ctx := dev.Within(t)
	agents := agentv1.NewAgentServiceClient(s.Conn())
	_, err := agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "lead", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, InitialMessage: "go",
	})
	require.NoError(t, err)
	acquire := func(agentID string) (got *agentv1.AcquireTurnResponse) {
		require.Eventually(t, func() bool {
			got, err = agents.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{
				AgentIds: []string{agentID},
				Wait:     durationpb.New(time.Second),
			})
			return err == nil && got.GetTurn() != nil
		}, time.Minute, 10*time.Millisecond)
		return got
	}
	turn := acquire("lead").GetTurn()
	index := int32(-1)
	round := func(text string, calls ...*agentv1.ToolCall) []*agentv1.ToolResult {
		index++
		r, err := agents.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
			AgentId: "lead", TurnId: turn.GetTurnId(),
			RunId: turn.GetRunId(), RoundIndex: index, Text: text, ToolCalls: calls,
		})
		require.NoError(t, err)
		for _, res := range r.GetToolResults() {
			require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, res.GetStatus(), "%v", res)
		}
		return r.GetToolResults()
	}
	rules := itemOf(round("", call("CreateWorkItem", "objective", "the rules of the house"))[0])
	other := itemOf(round("", call("CreateWorkItem", "objective", "nobody's business"))[0])
	main := itemOf(round("", call("CreateWorkItem", "objective", "ship the parser", "plan", "1. lexer\n2. as "+rules+
		" says"))[0])
	round("", call("PickWorkItem", "work_item_id", main))
	spawned := round("I hand the lexer over", call("SpawnAgent", "initial_message", "make the lexer", "context",
		"fork"),
		call("SpawnAgent", "initial_message", "make the lexer"))
	id := func(i int) string { return spawned[i].GetResult().GetFields()["agent_id"].GetStringValue() }

	text := acquire(id(0)).GetContext().GetText()
	for _, want := range []string{
		"> make the lexer", main, "ship the parser", "> 1. lexer", rules,
		"the rules of the house", "I hand the lexer over",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, other)
	require.NotContains(t, text, "nobody's business")
	fresh := acquire(id(1)).GetContext().GetText()
	require.Contains(t, fresh, "> make the lexer")
	require.NotContains(t, fresh, "parser")
}

// call returns a tool call with arguments that are texts.
func call(name string, args ...string) *agentv1.ToolCall {
	m := map[string]*structpb.Value{}
	for i := 0; i+1 < len(args); i += 2 {
		m[args[i]] = structpb.NewStringValue(args[i+1])
	}
	return &agentv1.ToolCall{Name: name, Arguments: &structpb.Struct{Fields: m}}
}

// itemOf returns the id of the item that a result shows.
func itemOf(r *agentv1.ToolResult) string {
	return r.GetResult().GetFields()["work_item"].GetStructValue().GetFields()["work_item_id"].GetStringValue()
}
