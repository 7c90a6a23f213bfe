package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/proc"
)

// SPEC A2, P2, A12: a child that waits for an operator is answered by the one who
// may reach it, its supervisor, with TaskInput: the wait is over, the item goes on,
// and the child's end brings the result. Nobody else can answer it, and without
// this it would wait without end.
func TestP2_ASupervisorAnswersItsChild(t *testing.T) {
	proc.Long(t)
	eachWay(t, func(t *testing.T, ctx context.Context, s *system) {
		s.spawn(t, ctx, "lead")
		s.say(t, ctx, "lead", "go")
		lead := s.acquire(t, ctx, "lead")
		spawned := lead.round(t, ctx, "I hand it over",
			tool(t, "SpawnAgent", map[string]any{"initial_message": "paint it"})).GetToolResults()[0]
		childID, taskID := at(spawned, "agent_id"), at(spawned, "task_handle", "task_id")

		child := s.acquire(t, ctx, childID)
		itemID := at(child.round(t, ctx, "", tool(t, "CreateWorkItem", map[string]any{"objective": "paint the door"})).
			GetToolResults()[0], "work_item", "work_item_id")
		asked := child.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": itemID}),
			tool(t, "WaitFor", map[string]any{"reason": "which colour?", "wake": "operator_input"}))
		require.True(t, asked.GetTurnEnded())

		_, err := s.agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{AgentId: childID, Text: "green"})
		require.Error(t, err, "no operator reaches a private child")
		told, err := s.agents.CallTool(ctx, &agentv1.CallToolRequest{
			AgentId: "lead", Name: "TaskInput", Arguments: args(t, map[string]any{"task_id": taskID, "text": "red"}),
		})
		require.NoError(t, err)
		require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, told.GetResult().GetStatus())

		child = s.acquire(t, ctx, childID)
		require.Contains(t, child.got.GetContext().GetText(), "> red")
		require.NotContains(t, child.got.GetContext().GetText(), "Waiting for an operator",
			"the turn begins when the answer was heard")
		// A turn waits 2 s at most for the work plane to know of the answer.
		require.Eventually(t, func() bool {
			it, err := s.work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: childID, WorkItemId: itemID})
			return err == nil && it.GetWorkItem().GetBlockedBy() == "" && len(it.GetWorkItem().GetWaits()) == 0
		}, time.Minute, 10*time.Millisecond)

		child.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": itemID}))
		child.round(t, ctx, "The door is red.", tool(t, "CompleteWorkItem", map[string]any{"work_item_id": itemID}))
		require.Eventually(t, func() bool {
			d, err := s.agents.ListDelegations(ctx, &agentv1.ListDelegationsRequest{AgentId: "lead"})
			return err == nil && len(d.GetDelegations()) == 1 && d.GetDelegations()[0].GetResultSummary() ==
				"The door is red."
		}, time.Minute, 10*time.Millisecond)
	})
}
