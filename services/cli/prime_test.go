package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/cli/work"
	"quartet/tests/dev"
	"quartet/tests/proc"
)

// SPEC C5.9: prime against a server, with an agent that holds 500 items of the largest objectives.
func TestC5_PrimeOfAServer(t *testing.T) {
	s := dev.Start(t)
	ctx := dev.Within(t)
	_, err := s.Agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	})
	require.NoError(t, err)
	code, out, errs := quartet(t, s, "prime", "keeper")
	require.Zero(t, code, errs)
	require.Contains(t, out, "Next: nothing is open.")

	var first string
	for i := range 500 {
		made := must.Value(s.Work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId: "keeper", Objective: strings.Repeat("世", 2000), Plan: "1. look",
			TodoList: []*workv1.TodoItem{{Text: strings.Repeat("t", 1000), State: workv1.TodoState_TODO_STATE_PENDING}},
		}))(t)
		if i == 0 {
			first = made.GetWorkItem().GetWorkItemId()
		}
		if i == 1 {
			must.Value(s.Waiting.WaitFor(ctx, &waitingv1.WaitForRequest{
				AgentId: "keeper", WorkItemId: made.GetWorkItem().GetWorkItemId(),
				Wake: waitingv1.Wake_WAKE_OPERATOR_INPUT, Reason: "which name it gets",
			}))(t)
		}
	}
	must.Value(s.Work.PickWorkItem(ctx, &workv1.PickWorkItemRequest{AgentId: "keeper", WorkItemId: first}))(t)
	code, out, errs = quartet(t, s, "prime", "keeper")
	require.Zero(t, code, errs)
	require.LessOrEqual(t, len(out), 4*work.PrimeTokens)
	require.Contains(t, out, "In focus: "+first)
	require.Contains(t, out, "plan.md (7 bytes")
	require.Contains(t, out, "Todos (0 of 1 done):\n- ttt")
	require.Contains(t, out, "[waiting_operator: which name it gets]")
	require.Contains(t, out, "more: ListWorkItems")

	code, out, errs = quartet(t, s, "prime", "keeper", "-o", "json")
	require.Zero(t, code, errs)
	var primer work.Primer
	require.NoError(t, json.Unmarshal([]byte(out), &primer))
	require.Equal(t, 500, primer.OpenItems)
	require.LessOrEqual(t, primer.Tokens, work.PrimeTokens)

	code, out, errs = quartet(t, s, "prime", "nobody")
	require.Equal(t, 3, code)
	require.Empty(t, out)
	require.Contains(t, errs, "nobody")
	code, out, errs = quartet(t, s, "prime", "nobody", "--hook", "claude")
	require.Zero(t, code, errs)
	require.Empty(t, out)
	require.Contains(t, errs, "quartet mcp --create")
	require.NotContains(t, errs, "agent spawn", "nobody has to create it by hand")

	s.Cfg.GRPCAddr, err = proc.FreeAddr() // where nothing listens
	require.NoError(t, err)
	code, out, errs = quartet(t, s, "prime", "keeper", "--timeout", "2s")
	require.Equal(t, 5, code)
	require.Empty(t, out)
	require.Contains(t, errs, "quartet dev")
}
