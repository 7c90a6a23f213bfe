package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/client"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/cli"
	"quartet/services/cli/work"
	"quartet/tests/dev"
	"quartet/tests/proc"
)

// quartet runs the command line against a server.
func quartet(t *testing.T, s *dev.Server, args ...string) (code int, out, errs string) {
	t.Setenv("COLUMNS", "200")
	var o, e bytes.Buffer
	code = cli.Run(dev.Within(t), cli.Servers{}, append(args, "--address", s.Cfg.GRPCAddr), strings.NewReader(""), &o,
		&e)
	return code, o.String(), e.String()
}

// releaseTurn is a turn of a model that creates a work item, picks it and completes
// it with a report.
func releaseTurn(ctx context.Context, turn *client.Turn) error {
	create, err := client.Call("a", "CreateWorkItem", map[string]any{
		"objective":   "Release 1.4",
		"plan_status": "ready",
	})
	if err != nil {
		return err
	}
	created, err := turn.Round(ctx, client.Reply{
		Text: "I make an item.", Usage: &agentv1.TokenUsage{InputTokens: 25, OutputTokens: 15},
		Calls: []*agentv1.ToolCall{create, {CallId: "b", Name: "Fly"}},
		Local: []*agentv1.ToolResult{
			{
				CallId: "l", ToolName: "WorkspaceRead", Status: agentv1.ToolStatus_TOOL_STATUS_SUCCESS,
				SummaryText: "read notes.md",
			},
		},
	})
	if err != nil {
		return err
	}
	item := created.GetToolResults()[0].GetResult().GetFields()["work_item"].GetStructValue().
		GetFields()["work_item_id"].GetStringValue()
	pick, err := client.Call("c", "PickWorkItem", map[string]any{"work_item_id": item})
	if err != nil {
		return err
	}
	if _, err := turn.Round(ctx, client.Reply{Calls: []*agentv1.ToolCall{pick}}); err != nil {
		return err
	}
	complete, err := client.Call("d", "CompleteWorkItem", map[string]any{"work_item_id": item})
	if err != nil {
		return err
	}
	return must.Err(turn.Round(ctx, client.Reply{Text: "Released: 1.4.", Calls: []*agentv1.ToolCall{complete}}))
}

// awaitResultBrief returns when the agent has a brief with a result. The agent plane
// writes it when it receives the promoted report from the work plane, which may be
// after the end of the turn.
func awaitResultBrief(t *testing.T, s *dev.Server, agentID string) {
	stream := must.Value(s.Events.WatchEvents(dev.Within(t), &eventv1.WatchEventsRequest{
		AgentId: agentID, Planes: []string{"agent"}, EventTypes: []string{"brief_written"}, FromStart: true,
	}))(t)
	for {
		m := must.Value(stream.Recv())(t)
		if m.GetEvent().GetPayload().GetFields()["brief"].GetStructValue().GetFields()["kind"].GetStringValue() ==
			"result" {
			return
		}
	}
}

// SPEC C1 to C4: the commands show what an agent of a real server did, and an agent
// that does not exist is not found, instead of having an empty history.
func TestC3_TheTranscriptOfARealAgent(t *testing.T) {
	s := dev.Start(t)
	code, _, errs := quartet(t, s, "agent", "spawn", "keeper", "--message", "Release 1.4")
	require.Zero(t, code, errs)
	finished := errors.New("no turn was finished")
	require.NoError(t, s.RunTurns(dev.Within(t), client.RunnerOptions{
		AgentIDs: []string{"keeper"}, MaxTurns: 1, Finished: func(_ *client.Turn, err error) { finished = err },
	}, releaseTurn))
	require.NoError(t, finished)
	awaitResultBrief(t, s, "keeper")

	for line, wants := range map[string][]string{
		"agent rounds keeper": {
			"round 1", "25 tokens in, 15 out", "I make an item.", "✓ CreateWorkItem {",
			"✗ Fly", "tool_not_available", "✓ WorkspaceRead by the runner", "round 3", "Released: 1.4.",
		},
		"agent rounds keeper --full": {`"objective": "Release 1.4"`},
		"agent briefs keeper":        {"ack ", "Release 1.4", "result ", "Released: 1.4."},
		"agent context keeper":       {"SECTION", "completed", "Released: 1.4."},
		"agent tools keeper":         {"CompleteWorkItem", "local_environment", "ListWorkItems"},
		"agent tools keeper WaitFor": {"tool", "WaitFor", `"properties": {`},
	} {
		code, out, errs := quartet(t, s, strings.Fields(line)...)
		require.Zero(t, code, "%s: %s", line, errs)
		for _, want := range wants {
			require.Contains(t, out, want, line)
		}
	}
	_, out, _ := quartet(t, s, "agent", "rounds", "keeper")
	require.Less(t, strings.Index(out, "round 1"), strings.Index(out, "round 3"), "rounds are in chronological order")

	for _, command := range []string{
		"agent get", "agent turns", "agent messages", "agent children", "agent rounds", "agent briefs", "agent context",
		"agent tools",
		"work list", "work queue", "work board", "wait list", "trigger list", "timer list", "task list", "explain",
	} {
		code, out, errs := quartet(t, s, append(strings.Fields(command), "nobody")...)
		require.Equal(t, 3, code, "%s: %s%s", command, out, errs)
		require.Contains(t, errs, `"nobody"`, command)
		require.Empty(t, out, command)
	}
	code, _, errs = quartet(t, s, "agent", "tools", "keeper", "Fly")
	require.Equal(t, 3, code, errs)
}

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
