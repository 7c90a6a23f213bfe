package mcp_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/mcp"
	"quartet/tests/dev"
)

// A coding agent takes no turns: what an operator says to it, such as the answer that it waits for, is in the results
// of the tools with which it looks at its work.
func TestC5_MemoryShowsMessages(t *testing.T) {
	r := newRig(t)
	s := r.serve(dev.Within(t), mcp.Config{}, mcp.Options{AgentID: "coder", Create: true, Tools: mcp.MemoryTools},
		r.conn, &heard{})
	made, _ := call(t, s, "CreateWorkItem", map[string]any{"objective": "Choose a licence"})
	item := at(made, "result", "work_item", "work_item_id")
	listed, _ := call(t, s, "ListWorkItems", nil)
	require.NotContains(t, listed, "messages")
	_, got := call(t, s, "WaitFor", map[string]any{
		"work_item_id": item, "wake": "operator_input",
		"reason": "MIT or Apache?",
	})
	require.False(t, got.IsError, text(t, got))
	said := must.Value(r.Agents.EnqueueMessage(dev.Within(t), &agentv1.EnqueueMessageRequest{
		AgentId: "coder", WorkItemId: item, Text: "Apache,\nplease",
	}))(t)

	for tool, args := range map[string]map[string]any{
		"ListWorkItems": nil, "GetWorkItem": {"work_item_id": item},
		"PickWorkItem": {"work_item_id": item},
	} {
		envelope, got := call(t, s, tool, args)
		require.False(t, got.IsError, text(t, got))
		messages := envelope["messages"].(map[string]any)
		require.EqualValues(t, 1, messages["not_taken_by_a_turn"], tool)
		require.Len(t, messages["newest"], 1)
		line := messages["newest"].([]any)[0].(string)
		require.Regexp(t, "^operator, .*Z about "+item+" \\("+said.GetMessage().GetMessageId()+"\\): Apache, please$",
			line)
		require.Contains(t, text(t, got), "Apache, please", tool)
	}
	updated, _ := call(t, s, "UpdateWorkItem", map[string]any{"work_item_id": item, "plan_status": "ready"})
	require.NotContains(t, updated, "messages", "other results stay short")

	// Of many, the newest are shown.
	for i := range 9 {
		must.Value(r.Agents.EnqueueMessage(dev.Within(t), &agentv1.EnqueueMessageRequest{
			AgentId: "coder", Text: fmt.Sprint("message ", i),
		}))(t)
	}
	listed, got = call(t, s, "ListWorkItems", nil)
	require.EqualValues(t, 10, listed["messages"].(map[string]any)["not_taken_by_a_turn"])
	require.NotContains(t, text(t, got), "message 3")
	require.Contains(t, text(t, got), "message 4")
	require.Contains(t, text(t, got), "message 8")

	// A session with all tools takes turns, or has ReadConversation.
	all := r.serve(dev.Within(t), mcp.Config{}, mcp.Options{AgentID: "coder"}, r.conn, &heard{})
	listed, _ = call(t, all, "ListWorkItems", nil)
	require.NotContains(t, listed, "messages")
}
