package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/client"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/tests/dev"
)

// The board tools have names that differ from those of tasks, with underscores or dots, and
// only agents that may orchestrate have them (SPEC C4).
func TestC4_BoardTools(t *testing.T) {
	r := dev.Start(t)
	require.NoError(t, spawnNamed(dev.Within(t), r.Client, "keeper"))
	call := func(name string, args map[string]any) *agentv1.ToolResult {
		in := must.Value(structpb.NewStruct(args))(t)
		return must.Value(r.Agents.CallTool(dev.Within(t), &agentv1.CallToolRequest{
			AgentId: "keeper", Name: name, Arguments: in,
		}))(t).GetResult()
	}
	done := func(name string, args map[string]any) map[string]any {
		res := call(name, args)
		require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, res.GetStatus(), "%s: %v", name, res.GetError())
		return res.GetResult().AsMap()
	}
	listed := must.Value(r.Agents.ListTools(dev.Within(t), &agentv1.ListToolsRequest{AgentId: "keeper"}))(t)
	schemas := map[string]map[string]any{}
	for _, tool := range listed.GetTools() {
		schemas[tool.GetName()] = tool.GetInputSchema().AsMap()["properties"].(map[string]any)
	}
	for _, name := range []string{
		"board_template", "board_create", "board_get", "board_list", "board_update",
		"board_query_steps",
		"board_update_step", "board_complete", "board_fail", "board_cancel", "board_dispatch_worker",
		"board_cancel_run", "board_open_dispatch", "board_close_dispatch", "board_list_dispatches",
		"board_list_workers",
	} {
		require.Contains(t, schemas, name)
		require.NotContains(t, schemas[name], "session_id")
		require.NotContains(t, schemas[name], "task_id")
	}
	for name := range schemas {
		require.NotContains(t, name, "agent_", "a former name is not listed")
	}
	require.Contains(t, schemas["board_get"], "board_id")
	require.Equal(t, "array", schemas["board_dispatch_worker"]["allowed_step_ids"].(map[string]any)["type"])

	require.Contains(t, done("board.template", nil)["text"], "step")
	made := done("board.create", map[string]any{
		"board_id": "build", "wal_filename": "build-1", "title": "Build",
		"steps": []any{
			map[string]any{"step_id": "fetch", "title": "Fetch"},
			map[string]any{"step_id": "test", "title": "Test", "depends_on_step_ids": []any{"fetch"}},
		},
	})
	require.NotEmpty(t, made["event_ids"])
	done("board_update", map[string]any{"board_id": "build", "operations": []any{
		map[string]any{"op": "add_step", "step": map[string]any{"step_id": "ship", "title": "Ship"}},
		map[string]any{"op": "update_step", "step_id": "ship", "fields": map[string]any{
			"depends_on_step_ids": []any{"test"},
		}},
	}})
	done("board_update_step", map[string]any{
		"board_id": "build", "step_id": "fetch", "status": "completed",
		"result_summary": "12 MB",
	})
	ready := done("board_query_steps", map[string]any{"board_id": "build", "statuses": []any{"ready"}})
	require.Len(t, ready["steps"], 1)

	refused := func(kind, name string, args map[string]any) {
		res := call(name, args)
		require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_ERROR, res.GetStatus())
		require.Equal(t, kind, res.GetError().GetKind(), res.GetError().GetMessage())
	}
	refused("board_not_completeable", "board_complete", map[string]any{"board_id": "build"})
	refused("dependency_cycle", "board_update", map[string]any{"board_id": "build", "operations": []any{
		map[string]any{"op": "add_dependency", "step_id": "test", "depends_on_step_id": "ship"},
	}})
	refused("unknown_field", "board_get", map[string]any{"board_id": "build", "session_id": "other"})
	refused("tool_not_available", "board_claim_step", map[string]any{"board_id": "build"})
	done("board_cancel", map[string]any{"board_id": "build", "reason": "enough"})
	require.Empty(t, done("board_list", nil)["boards"])

	board := done("board_get", map[string]any{"board_id": "build"})["board"].(map[string]any)
	require.Equal(t, "cancelled", board["status"])
}

// An orchestrating model opens and closes standing dispatches, sees who is connected, and stops a
// run (SPEC B10.4).
func TestB10_ToolsForRunsAndDispatches(t *testing.T) {
	r := dev.Start(t)
	require.NoError(t, spawnNamed(dev.Within(t), r.Client, "keeper"))
	call := func(name string, args map[string]any) map[string]any {
		in := must.Value(structpb.NewStruct(args))(t)
		got := must.Value(r.Agents.CallTool(dev.Within(t), &agentv1.CallToolRequest{
			AgentId: "keeper", Name: name, Arguments: in,
		}))(t)
		require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, got.GetResult().GetStatus(), "%s: %v", name,
			got.GetResult().GetError())
		return got.GetResult().GetResult().AsMap()
	}
	call("board_create", map[string]any{
		"board_id": "build", "wal_name": "build", "title": "Build",
		"steps": []any{map[string]any{"step_id": "a", "title": "A"}},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended, stopped := make(chan error, 1), make(chan error, 1)
	go func() {
		ended <- r.RunSteps(ctx, client.StepOptions{ID: "w-1", Pools: []string{"default"}},
			func(ctx context.Context, _ *boardv1.StepAssignment) (client.StepResult, error) {
				<-ctx.Done()
				stopped <- context.Cause(ctx)
				return client.StepResult{}, ctx.Err()
			})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	opened := call("board_open_dispatch", map[string]any{
		"board_id": "build", "max_parallel": 2, "step_timeout": "90m",
		"allowed_step_ids": []any{"a"},
	})["dispatch"].(map[string]any)
	require.Equal(t, "5400s", opened["step_timeout"])
	listed := call("board_list_dispatches", map[string]any{"board_id": "build"})["dispatches"].([]any)
	require.Equal(t, opened["dispatch_id"], listed[0].(map[string]any)["dispatch_id"])
	var runs []any
	require.Eventually(t, func() bool {
		workers, _ := call("board_list_workers", map[string]any{"worker_pool_id": "default"})["workers"].([]any)
		if len(workers) == 0 {
			return false
		}
		runs, _ = workers[0].(map[string]any)["run_ids"].([]any)
		return len(runs) == 1
	}, time.Minute, 5*time.Millisecond)
	call("board_close_dispatch", map[string]any{"board_id": "build", "dispatch_id": opened["dispatch_id"]})
	require.Empty(t, call("board_list_dispatches", map[string]any{"board_id": "build"})["dispatches"])
	run := call("board_cancel_run", map[string]any{"board_id": "build", "run_id": runs[0]})["run"].(map[string]any)
	require.Equal(t, "cancelled", run["status"])
	require.ErrorIs(t, <-stopped, client.ErrStopped)
}

// SPEC C5.8: the former names of the board tools and the former argument can be called, and
// the result names the tool as it is listed.
func TestC5_FormerNamesOfBoardTools(t *testing.T) {
	r := dev.Start(t)
	require.NoError(t, spawnNamed(dev.Within(t), r.Client, "keeper"))
	for i, create := range []string{"agent_task_create", "agent.task_create", "board.create", "board_create"} {
		board := fmt.Sprintf("build-%d", i)
		for _, c := range []struct {
			name, listed string
			args         map[string]any
		}{
			{create, "board_create", map[string]any{
				"task_id": board, "wal_name": board, "title": "Build",
				"steps": []any{map[string]any{"step_id": "a", "title": "A"}},
			}},
			{"agent_task_get", "board_get", map[string]any{"task_id": board}},
			{"agent.task_get", "board_get", map[string]any{"board_id": board}},
			{"agent_task_query_steps", "board_query_steps", map[string]any{"task_id": board}},
			{"agent_task_update_step", "board_update_step", map[string]any{
				"task_id": board, "step_id": "a",
				"status": "completed",
			}},
			{"agent_task_complete", "board_complete", map[string]any{"task_id": board}},
			{"agent_task_list", "board_list", nil},
			{"agent_task_template", "board_template", nil},
		} {
			in := must.Value(structpb.NewStruct(c.args))(t)
			got := must.Value(r.Agents.CallTool(dev.Within(t), &agentv1.CallToolRequest{
				AgentId: "keeper", Name: c.name, Arguments: in,
			}))(t)
			require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, got.GetResult().GetStatus(), "%s: %v", c.name,
				got.GetResult().GetError())
			require.Equal(t, c.listed, got.GetResult().GetToolName())
		}
	}
	in := must.Value(structpb.NewStruct(map[string]any{"task_id": "build-0"}))(t)
	got := must.Value(r.Agents.CallTool(dev.Within(t), &agentv1.CallToolRequest{
		AgentId: "keeper", Name: "agent_dispatch_worker", Arguments: in,
	}))(t)
	require.Equal(t, "board_not_dispatchable", got.GetResult().GetError().GetKind(),
		"the tool is known, the board is closed")
}
