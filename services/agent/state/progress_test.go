package state

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

func structOf(t *testing.T, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	require.NoError(t, err)
	return s
}

// A turn makes progress if a call changed something, or did something that the last three
// turns had not done (SPEC D9).
func TestD9_WhatIsProgress(t *testing.T) {
	exec := func(cmd, output, id string) (*agentv1.ToolCall, *agentv1.ToolResult) {
		return &agentv1.ToolCall{Name: "ExecCommand", Arguments: structOf(t, map[string]any{"cmd": cmd})},
			&agentv1.ToolResult{Status: agentv1.ToolStatus_TOOL_STATUS_SUCCESS, Result: structOf(t, map[string]any{
				"output": output, "task": map[string]any{"task_id": id, "ended_at": id, "revision": float64(len(id))},
			})}
	}
	a := &Agent{Record: &agentv1.Agent{}}
	turn := func(rounds []*agentv1.Round, effects ...func(*Turn)) bool {
		a.OpenTurn = &Turn{Record: &agentv1.Turn{}, Rounds: rounds}
		for _, e := range effects {
			e(a.OpenTurn)
		}
		progressed := a.progressed()
		a.EndedTurns.Append(a.OpenTurn)
		a.OpenTurn = nil
		return progressed
	}
	command := func(cmd, output, id string) func(*Turn) {
		return func(t *Turn) { t.recordEffect(exec(cmd, output, id)) }
	}
	require.False(t, turn(nil), "words")
	require.True(t, turn(nil, func(tn *Turn) { tn.recordEffect(&agentv1.ToolCall{Name: "UpdateWorkItem"}, nil) }),
		"a change")
	require.True(t, turn(nil, command("make", "ok", "tsk_1")))
	require.False(t, turn(nil, command("make", "ok", "tsk_22")), "the same again, whatever its id")
	require.True(t, turn(nil, command("make", "failed", "tsk_3")), "another result")
	require.True(t, turn(nil, command("make test", "ok", "tsk_4")), "other arguments")
	require.False(t, turn(nil, command("make", "ok", "tsk_5"), command("make test", "ok", "tsk_6")),
		"both were seen within three turns")
	require.False(t, turn(nil))
	require.False(t, turn(nil))
	require.False(t, turn(nil))
	require.True(t, turn(nil, command("make", "ok", "tsk_7")), "three turns later it is new")

	local := func(text string, status agentv1.ToolStatus) []*agentv1.Round {
		return []*agentv1.Round{
			{LocalToolResults: []*agentv1.ToolResult{{ToolName: "Read", Status: status, SummaryText: text}}},
		}
	}
	require.True(t, turn(local("one", agentv1.ToolStatus_TOOL_STATUS_SUCCESS)))
	require.False(t, turn(local("one", agentv1.ToolStatus_TOOL_STATUS_SUCCESS)))
	require.False(t, turn(local("two", agentv1.ToolStatus_TOOL_STATUS_ERROR)), "a failure of a local tool")
}
