package tests

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/tests/dev"
)

// The board tools have the names of the board contract, with underscores or dots, and its
// shapes, and only agents that may orchestrate have them (SPEC C4).
func TestC4_BoardTools(t *testing.T) {
	r := dev.Start(t)
	require.NoError(t, spawnNamed(dev.Within(t), r.Client, "keeper"))
	call := func(name string, args map[string]any) *agentv1.ToolResult {
		in, err := structpb.NewStruct(args)
		require.NoError(t, err)
		got, err := r.Agents.CallTool(dev.Within(t), &agentv1.CallToolRequest{AgentId: "keeper", Name: name, Arguments: in})
		require.NoError(t, err)
		return got.GetResult()
	}
	done := func(name string, args map[string]any) map[string]any {
		res := call(name, args)
		require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, res.GetStatus(), "%s: %v", name, res.GetError())
		return res.GetResult().AsMap()
	}
	listed, err := r.Agents.ListTools(dev.Within(t), &agentv1.ListToolsRequest{AgentId: "keeper"})
	require.NoError(t, err)
	schemas := map[string]map[string]any{}
	for _, tool := range listed.GetTools() {
		schemas[tool.GetName()] = tool.GetInputSchema().AsMap()["properties"].(map[string]any)
	}
	for _, name := range []string{"agent_task_template", "agent_task_create", "agent_task_get", "agent_task_list", "agent_task_update", "agent_task_query_steps",
		"agent_task_update_step", "agent_task_complete", "agent_task_fail", "agent_task_cancel", "agent_dispatch_worker"} {
		require.Contains(t, schemas, name)
		require.NotContains(t, schemas[name], "session_id")
		require.NotContains(t, schemas[name], "board_id")
	}
	require.Equal(t, "array", schemas["agent_dispatch_worker"]["allowed_step_ids"].(map[string]any)["type"])

	require.Contains(t, done("agent.task_template", nil)["text"], "step")
	made := done("agent.task_create", map[string]any{
		"task_id": "build", "wal_filename": "build-1", "title": "Build",
		"steps": []any{map[string]any{"step_id": "fetch", "title": "Fetch"}, map[string]any{"step_id": "test", "title": "Test", "depends_on_step_ids": []any{"fetch"}}},
	})
	require.NotEmpty(t, made["event_ids"])
	done("agent_task_update", map[string]any{"task_id": "build", "operations": []any{
		map[string]any{"op": "add_step", "step": map[string]any{"step_id": "ship", "title": "Ship"}},
		map[string]any{"op": "update_step", "step_id": "ship", "fields": map[string]any{"depends_on_step_ids": []any{"test"}}},
	}})
	done("agent_task_update_step", map[string]any{"task_id": "build", "step_id": "fetch", "status": "completed", "result_summary": "12 MB"})
	ready := done("agent_task_query_steps", map[string]any{"task_id": "build", "statuses": []any{"ready"}})
	require.Len(t, ready["steps"], 1)

	refused := func(kind, name string, args map[string]any) {
		res := call(name, args)
		require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_ERROR, res.GetStatus())
		require.Equal(t, kind, res.GetError().GetKind(), res.GetError().GetMessage())
	}
	refused("board_not_completeable", "agent_task_complete", map[string]any{"task_id": "build"})
	refused("dependency_cycle", "agent_task_update", map[string]any{"task_id": "build", "operations": []any{
		map[string]any{"op": "add_dependency", "step_id": "test", "depends_on_step_id": "ship"},
	}})
	refused("unknown_field", "agent_task_get", map[string]any{"task_id": "build", "session_id": "other"})
	refused("tool_not_available", "agent_task_claim_step", map[string]any{"task_id": "build"})
	done("agent_task_cancel", map[string]any{"task_id": "build", "reason": "enough"})
	require.Empty(t, done("agent_task_list", nil)["boards"])

	board := done("agent_task_get", map[string]any{"task_id": "build"})["board"].(map[string]any)
	require.Equal(t, "cancelled", board["status"])
}
