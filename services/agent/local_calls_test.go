package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/runners"
	"quartet/services/agent/turns"
)

func (r *rig) startCalls(a *agentv1.AcquireTurnResponse, index int32, calls ...*agentv1.ToolCall) error {
	return must.Err(r.service.StartLocalCalls(r.runner(), &agentv1.StartLocalCallsRequest{
		AgentId: a.GetTurn().GetAgentId(), TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(),
		RoundIndex: index, Calls: calls,
	}))
}

func (r *rig) started() int {
	n := 0
	for _, ev := range r.events() {
		if ev.Type == "local_calls_started" {
			n++
		}
	}
	return n
}

// local returns a call that a runner executes.
func local(id, name string, args ...any) *agentv1.ToolCall {
	c := use(name, args...)
	c.CallId = id
	return c
}

// A runner that is lost between the start of a call of its own and the round with its result
// leaves a call of which the next contexts say that it may have happened, also after a restart.
// What it reported is shown with its result.
func TestA6_LocalCallsOfALostRunnerAreUnknown(t *testing.T) {
	r, a := turn(t)
	write := local("w1", "WorkspaceWrite", "path", "mail.txt", "text", "Dear all")
	require.NoError(t, r.startCalls(a, 0, write))
	must.Value(r.service.SubmitRound(r.runner(), &agentv1.SubmitRoundRequest{
		AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(), Text: "First.",
		LocalToolCalls: []*agentv1.ToolCall{write},
		LocalToolResults: []*agentv1.ToolResult{
			{
				CallId: "w1", ToolName: "WorkspaceWrite", Status: agentv1.ToolStatus_TOOL_STATUS_SUCCESS,
				SummaryText: "written",
			},
		},
	}))(t)
	require.NoError(t, r.startCalls(a, 1, local("w2", "WorkspaceEdit", "path", "list.txt"),
		local("w3", "WorkspaceWrite", "path", "b.txt")))
	require.NoError(t, r.startCalls(a, 1, local("w4", "WorkspaceWrite", "path", "c.txt")))
	r.clk.Advance(runners.Term)
	require.NoError(t, r.service.Quiesce(t.Context()))
	for range 2 {
		b := r.take("keeper")
		text := b.GetContext().GetText()
		id := a.GetTurn().GetTurnId()
		require.Contains(t, text, id+"/0 WorkspaceWrite: success, written\n  arguments: "+
			"{\"path\":\"mail.txt\",\"text\":\"Dear all\"}")
		for _, path := range []string{"list.txt", "b.txt", "c.txt"} {
			require.Contains(t, text, `"path":"`+path+`"`)
		}
		require.Equal(t, 3, strings.Count(text, "outcome unknown: look before you repeat it"), text)
		require.Contains(t, text, id+"/1 WorkspaceEdit: outcome unknown")
		r.finish(b, retryable)
		r.restart()
	}
}

// A round that is submitted says what came of the calls that were started.
func TestA6_ASubmittedRoundEndsItsLocalCalls(t *testing.T) {
	r, a := turn(t)
	require.NoError(t, r.startCalls(a, 0, local("w1", "WorkspaceWrite", "path", "x")))
	must.Value(r.service.SubmitRound(r.runner(), &agentv1.SubmitRoundRequest{
		AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(), Text: "Changed my mind.",
	}))(t)
	r.finish(a, retryable)
	b := r.take("keeper")
	require.NotContains(t, b.GetContext().GetText(), "outcome unknown")
}

func TestA6_LocalCallsAreChecked(t *testing.T) {
	r, a := turn(t)
	call := local("w1", "WorkspaceWrite", "path", "x")
	require.NoError(t, r.startCalls(a, 0, call))
	require.NoError(t, r.startCalls(a, 0, call))
	require.Equal(t, 1, r.started(), "a repetition records nothing")
	require.ErrorIs(t, r.startCalls(a, 0, local("w1", "WorkspaceWrite", "path", "y")), fault.RequestIDReused)
	for name, err := range map[string]error{
		"none":       r.startCalls(a, 0),
		"no id":      r.startCalls(a, 0, use("WorkspaceWrite")),
		"no name":    r.startCalls(a, 0, local("w2", "")),
		"twice":      r.startCalls(a, 0, local("w2", "X"), local("w2", "X")),
		"next round": r.startCalls(a, 1, local("w2", "X")),
	} {
		require.ErrorIs(t, err, fault.InvalidArgument, name)
	}
	many := func(n int) []*agentv1.ToolCall {
		var calls []*agentv1.ToolCall
		for i := range n {
			calls = append(calls, local(fmt.Sprint("m", i), "X"))
		}
		return calls
	}
	require.ErrorIs(t, r.startCalls(a, 0, many(turns.MaxCalls+1)...), fault.LimitExceeded)
	require.ErrorIs(t, r.startCalls(a, 0, many(turns.MaxCalls)...), fault.LimitExceeded, "with the one before")
	require.Equal(t, 1, r.started())
	require.NoError(t, r.startCalls(a, 0, many(turns.MaxCalls-1)...))
	require.NoError(t, r.startCalls(a, 0, call), "a repetition adds none")

	must.Refuse(r.service.StartLocalCalls(r.runner(), &agentv1.StartLocalCallsRequest{
		AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: "run_" + strings.Repeat("0", 26), Calls: many(1),
	}))(t, fault.RunStale)
	r.finish(a, done)
	require.ErrorIs(t, r.startCalls(a, 0, local("w9", "X")), fault.TurnEnded)
}
