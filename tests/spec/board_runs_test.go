package spec

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/tests/dev"
)

// TestBoardContract_ARunThatEnds proves that a run which ends while it holds a step
// fails that step, with its reason and its event, and no other.
func TestBoardContract_ARunThatEnds(t *testing.T) {
	b := newBoards(t)
	b.create("one", step("a"), step("b"))
	first, second := b.dispatch("one", "default", "a"), b.dispatch("one", "default", "b")
	must.Value(first.claim("a"))(t)
	must.Value(second.claim("b"))(t)
	at := b.get("one").GetRevision()
	end := must.Value(b.Boards.FinishWorkerRun(first.ctx(), &boardv1.FinishWorkerRunRequest{
		SessionId: session, BoardId: "one", WorkerResult: "gave up",
	}))(t)
	require.Equal(t, failed, end.GetRun().GetStepStatus())
	lines := b.wal("one", at)
	require.Equal(t, []string{"task_step_failed"}, types(lines))
	require.Equal(t, "a", lines[0].StepID)
	require.Equal(t, "worker_finished_without_terminal_step_status", b.step("one", "a").GetReason())
	require.Equal(t, "worker_finished_without_terminal_step_status", b.step("one", "a").GetResultSummary())
	require.Equal(t, claimed, b.step("one", "b").GetStatus())
	require.Equal(t, second.id, b.step("one", "b").GetClaimedByRunId())
}

// TestBoardContract_CreatedByARun proves that a board which is created in a turn
// names the turn's run, and the agent, from the credential alone.
func TestBoardContract_CreatedByARun(t *testing.T) {
	b := newBoards(t)
	_, err := b.Agents.EnqueueMessage(dev.Within(t), &agentv1.EnqueueMessageRequest{AgentId: session, Text: "Build it"})
	require.NoError(t, err)
	turn := must.Value(b.Agents.AcquireTurn(dev.Within(t), &agentv1.AcquireTurnRequest{AgentIds: []string{session}}))(t)
	args := must.Value(structpb.NewStruct(map[string]any{
		"task_id": "one", "wal_name": "one", "title": "T",
		"steps": []any{map[string]any{"step_id": "a", "title": "A"}},
	}))(t)
	got := must.Value(b.Agents.SubmitRound(dev.Within(t), &agentv1.SubmitRoundRequest{
		AgentId: session, RunId: turn.GetTurn().GetRunId(), RoundIndex: 0, TurnId: turn.GetTurn().GetTurnId(),
		ToolCalls: []*agentv1.ToolCall{{CallId: "c1", Name: "board_create", Arguments: args}},
	}))(t)
	require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, got.GetToolResults()[0].GetStatus(), "%v",
		got.GetToolResults()[0].GetError())
	require.Equal(t, session, b.get("one").GetCreatedByAgentId())
	require.Equal(t, turn.GetTurn().GetRunId(), b.get("one").GetCreatedByRunId())
}
