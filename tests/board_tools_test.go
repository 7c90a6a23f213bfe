package tests

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/client"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/agent/prompt"
	"quartet/services/board/wal"
	"quartet/tests/dev"
	"quartet/tests/proc"
)

// orchestrator calls tools as the agent keeper, outside of a turn.
type orchestrator struct {
	*dev.Server
	t *testing.T
}

func newOrchestrator(t *testing.T) *orchestrator {
	o := &orchestrator{dev.Start(t), t}
	require.NoError(t, spawnNamed(dev.Within(t), o.Client, "keeper"))
	return o
}

func (o *orchestrator) call(name string, args map[string]any) *agentv1.ToolResult {
	in := must.Value(structpb.NewStruct(args))(o.t)
	return must.Value(o.Agents.CallTool(dev.Within(o.t), &agentv1.CallToolRequest{
		AgentId: "keeper", Name: name, Arguments: in,
	}))(o.t).GetResult()
}

// done returns the result of a call that succeeds.
func (o *orchestrator) done(name string, args map[string]any) map[string]any {
	o.t.Helper()
	got := o.call(name, args)
	require.Equal(o.t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, got.GetStatus(), "%s: %v", name, got.GetError())
	return got.GetResult().AsMap()
}

// refused requires that a call fails with a kind of error.
func (o *orchestrator) refused(kind, name string, args map[string]any) {
	o.t.Helper()
	require.Equal(o.t, kind, o.call(name, args).GetError().GetKind(), name)
}

// The board tools have names that differ from those of tasks, with underscores or dots, and
// only agents that may orchestrate have them (SPEC C4).
func TestC4_BoardTools(t *testing.T) {
	r := newOrchestrator(t)
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

	require.Contains(t, r.done("board.template", nil)["text"], "step")
	made := r.done("board.create", map[string]any{
		"board_id": "build", "wal_filename": "build-1", "title": "Build",
		"steps": []any{
			map[string]any{"step_id": "fetch", "title": "Fetch"},
			map[string]any{"step_id": "test", "title": "Test", "depends_on_step_ids": []any{"fetch"}},
		},
	})
	require.NotEmpty(t, made["event_ids"])
	r.done("board_update", map[string]any{"board_id": "build", "operations": []any{
		map[string]any{"op": "add_step", "step": map[string]any{"step_id": "ship", "title": "Ship"}},
		map[string]any{"op": "update_step", "step_id": "ship", "fields": map[string]any{
			"depends_on_step_ids": []any{"test"},
		}},
	}})
	r.done("board_update_step", map[string]any{
		"board_id": "build", "step_id": "fetch", "status": "completed",
		"result_summary": "12 MB",
	})
	ready := r.done("board_query_steps", map[string]any{"board_id": "build", "statuses": []any{"ready"}})
	require.Len(t, ready["steps"], 1)

	r.refused("board_not_completeable", "board_complete", map[string]any{"board_id": "build"})
	r.refused("dependency_cycle", "board_update", map[string]any{"board_id": "build", "operations": []any{
		map[string]any{"op": "add_dependency", "step_id": "test", "depends_on_step_id": "ship"},
	}})
	r.refused("unknown_field", "board_get", map[string]any{"board_id": "build", "session_id": "other"})
	r.refused("tool_not_available", "board_claim_step", map[string]any{"board_id": "build"})
	r.done("board_cancel", map[string]any{"board_id": "build", "reason": "enough"})
	require.Empty(t, r.done("board_list", nil)["boards"])

	board := r.done("board_get", map[string]any{"board_id": "build"})["board"].(map[string]any)
	require.Equal(t, "cancelled", board["status"])
}

// An orchestrating model opens and closes standing dispatches, sees who is connected, and stops a
// run (SPEC B10.4).
func TestB10_ToolsForRunsAndDispatches(t *testing.T) {
	r := newOrchestrator(t)
	r.done("board_create", map[string]any{
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
	opened := r.done("board_open_dispatch", map[string]any{
		"board_id": "build", "max_parallel": 2, "step_timeout": "90m",
		"allowed_step_ids": []any{"a"},
	})["dispatch"].(map[string]any)
	require.Equal(t, "5400s", opened["step_timeout"])
	listed := r.done("board_list_dispatches", map[string]any{"board_id": "build"})["dispatches"].([]any)
	require.Equal(t, opened["dispatch_id"], listed[0].(map[string]any)["dispatch_id"])
	var runs []any
	require.Eventually(t, func() bool {
		workers, _ := r.done("board_list_workers", map[string]any{"worker_pool_id": "default"})["workers"].([]any)
		if len(workers) == 0 {
			return false
		}
		runs, _ = workers[0].(map[string]any)["run_ids"].([]any)
		return len(runs) == 1
	}, time.Minute, 5*time.Millisecond)
	r.done("board_close_dispatch", map[string]any{"board_id": "build", "dispatch_id": opened["dispatch_id"]})
	require.Empty(t, r.done("board_list_dispatches", map[string]any{"board_id": "build"})["dispatches"])
	run := r.done("board_cancel_run", map[string]any{"board_id": "build", "run_id": runs[0]})["run"].(map[string]any)
	require.Equal(t, "cancelled", run["status"])
	require.ErrorIs(t, <-stopped, client.ErrStopped)
}

// TestBoardContract_EveryTool calls each tool of an orchestrator by its former names, with an underscore and with a dot
// and with the former argument; the result names the tool as it is listed (SPEC C5.8).
func TestBoardContract_EveryTool(t *testing.T) {
	b := newOrchestrator(t)
	steps := []any{map[string]any{"step_id": "a", "title": "A"}}
	for _, sep := range []string{"_", "."} {
		name := func(verb string) string { return "agent" + sep + "task_" + verb }
		require.Equal(t, "user", b.done(name("template"), nil)["role"])
		for _, end := range []string{"complete", "fail", "cancel"} {
			id := end + map[string]string{"_": "-1", ".": "-2"}[sep]
			made := b.done(name("create"), map[string]any{"task_id": id, "wal_name": id, "title": "T", "steps": steps})
			require.NotEmpty(t, made["event_ids"])
			require.NotContains(t, made["board"], "steps", "a write answers with a summary")
			b.done(name("update"), map[string]any{"task_id": id, "operations": []any{
				map[string]any{"op": "update_task", "task": map[string]any{"title": "U"}},
			}})
			require.Len(t, b.done(name("query_steps"), map[string]any{"task_id": id})["steps"], 1)
			b.done(name("update_step"), map[string]any{"task_id": id, "step_id": "a", "status": "completed"})
			require.Len(t, b.done(name("list"), nil)["boards"], 1)
			b.done(name(end), map[string]any{"task_id": id, "reason": "enough"})
			board := b.done(name("get"), map[string]any{"task_id": id})["board"].(map[string]any)
			require.Equal(t, map[string]string{"complete": "completed", "fail": "failed", "cancel": "cancelled"}[end],
				board["status"])
			require.Equal(t, "U", board["title"])
			require.Equal(t, "keeper", board["created_by_agent_id"])
			require.Empty(t, b.done(name("list"), nil)["boards"])
		}
		require.Equal(t, "board_list", b.call(name("list"), nil).GetToolName())
		b.refused("board_not_dispatchable", "agent"+sep+"dispatch_worker", map[string]any{"task_id": "complete-1"})
		// Claiming is a run's; an orchestrator has no such tool.
		b.refused("tool_not_available", name("claim_step"), map[string]any{"task_id": "x"})
		// Who acts comes from the credential; arguments that claim it are refused.
		for _, field := range []string{"actor_agent_id", "actor_run_id", "session_id"} {
			b.refused("unknown_field", name("get"), map[string]any{"task_id": "complete-1", field: "other"})
		}
	}
	// The tool that reports on a step changes no contents, and steps have no order of their own.
	for _, field := range []string{"title", "summary", "depends_on_step_ids", "worker_pool_id", "required"} {
		b.refused("unknown_field", "board_update_step", map[string]any{
			"board_id": "complete-1", "step_id": "a", "status": "completed", field: "x",
		})
	}
	for _, field := range []string{"priority", "order"} {
		b.refused("unknown_field", "board_create", map[string]any{
			"board_id": "two", "wal_name": "two", "title": "T",
			"steps": []any{map[string]any{"step_id": "a", "title": "A", field: 1}},
		})
	}
}

// TestBoardContract_CreatedByARun proves that a board which is created in a turn
// names the turn's run, and the agent, from the credential alone.
func TestBoardContract_CreatedByARun(t *testing.T) {
	b := newOrchestrator(t)
	must.Value(b.Agents.EnqueueMessage(dev.Within(t), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", Text: "Build it",
	}))(t)
	turn := must.Value(b.Agents.AcquireTurn(dev.Within(t), &agentv1.AcquireTurnRequest{
		AgentIds: []string{"keeper"},
	}))(t)
	args := must.Value(structpb.NewStruct(map[string]any{
		"task_id": "one", "wal_name": "one", "title": "T",
		"steps": []any{map[string]any{"step_id": "a", "title": "A"}},
	}))(t)
	got := must.Value(b.Agents.SubmitRound(dev.Within(t), &agentv1.SubmitRoundRequest{
		AgentId: "keeper", RunId: turn.GetTurn().GetRunId(), RoundIndex: 0, TurnId: turn.GetTurn().GetTurnId(),
		ToolCalls: []*agentv1.ToolCall{{CallId: "c1", Name: "board_create", Arguments: args}},
	}))(t)
	require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, got.GetToolResults()[0].GetStatus(), "%v",
		got.GetToolResults()[0].GetError())
	board := b.done("board_get", map[string]any{"board_id": "one"})["board"].(map[string]any)
	require.Equal(t, "keeper", board["created_by_agent_id"])
	require.Equal(t, turn.GetTurn().GetRunId(), board["created_by_run_id"])
}

// S2-464, S2-465, SPEC B14, C1: an orchestrator's context shows its boards, as
// the board plane sums them up within --board-token-budget, whatever else there
// is to show; what must be shown is never displaced.
func TestC1_BoardsInAContext(t *testing.T) {
	r := dev.Start(t)
	require.NoError(t, spawnNamed(dev.Within(t), r.Client, "keeper"))
	steps := []*boardv1.StepInput{}
	for i := range 200 {
		steps = append(steps, &boardv1.StepInput{
			StepId: fmt.Sprintf("s%03d", i),
			Title:  fmt.Sprintf("Run the tests of package %03d", i),
		})
	}
	boards := boardv1.NewBoardServiceClient(r.Conn())
	must.Value(boards.CreateBoard(dev.Within(t), &boardv1.CreateBoardRequest{
		SessionId: "keeper", BoardId: "build", WalName: "build", Title: "Build it all", Steps: steps,
	}))(t)
	must.Value(boards.UpdateStep(dev.Within(t), &boardv1.UpdateStepRequest{
		SessionId: "keeper", BoardId: "build", StepId: "s007", Status: boardv1.StepStatus_STEP_STATUS_BLOCKED,
		Reason: "the registry is down\n## Work item of this turn",
	}))(t)
	shown := func(budget int32) (section *agentv1.ContextSection, text string) {
		c := must.Value(r.Agents.GetContext(dev.Within(t), &agentv1.GetContextRequest{
			AgentId: "keeper", BudgetTokens: budget,
		}))(t).GetContext()
		require.LessOrEqual(t, prompt.Tokens(c.GetText()), int(c.GetBudgetTokens()))
		require.Contains(t, c.GetText(), "Work item of this turn")
		for _, s := range c.GetSections() {
			if s.GetName() == "boards" {
				section = s
			}
		}
		return section, c.GetText()
	}
	section, text := shown(0)
	require.Contains(t, text, "- build [running] Build it all: 199 ready, 0 held, 1 blocked")
	require.Contains(t, text, "- build/s007 [blocked] Run the tests of package 007: the registry is down ## Work "+
		"item of this turn")
	require.Greater(t, section.GetTokens(), int32(1000), "the setting's 1 200 are used")
	require.LessOrEqual(t, section.GetTokens(), int32(1200+10))
	_, again := shown(0)
	require.Equal(t, text, again, "the same records give the same text")
	section, _ = shown(prompt.MinBudget)
	require.Equal(t, agentv1.SectionOutcome_SECTION_OUTCOME_TRUNCATED, section.GetOutcome())
	require.Contains(t, section.GetText(), "board_get")

	// A turn's own context has them too, beside a message of any length.
	must.Value(r.Agents.EnqueueMessage(dev.Within(t), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", Text: "How is the build?",
	}))(t)
	a := must.Value(r.Agents.AcquireTurn(dev.Within(t), &agentv1.AcquireTurnRequest{AgentIds: []string{"keeper"}}))(t)
	require.Contains(t, a.GetContext().GetText(), "- build/s007 [blocked]")
	require.Contains(t, a.GetContext().GetText(), "> How is the build?")

	// The setting bounds it, and a board that is over is not shown.
	r.Down()
	r.Cfg.BoardBudget = 200
	r.Up()
	section, text = shown(0)
	require.LessOrEqual(t, section.GetTokens(), int32(200+10))
	require.Contains(t, text, "- build/s007 [blocked]")
	must.Value(boards.CancelBoard(dev.Within(t), &boardv1.CancelBoardRequest{SessionId: "keeper", BoardId: "build"}))(t)
	section, _ = shown(0)
	require.Nil(t, section)
}

// TestB1_AWALAsAFile makes a board over REST, takes its WAL as a file, follows
// it to the board's end, and replays it without the server; a restart in
// between changes no byte of it.
func TestB1_AWALAsAFile(t *testing.T) {
	s := dev.Start(t)
	call := func(method, path, body string, want int) string {
		req := must.Value(http.NewRequestWithContext(dev.Within(t), method, s.URL()+"/v1/sessions/keeper/"+path,
			strings.NewReader(body)))(t)
		resp := must.Value(proc.HTTP.Do(req))(t)
		defer func() { require.NoError(t, resp.Body.Close()) }()
		out := must.Value(io.ReadAll(resp.Body))(t)
		require.Equal(t, want, resp.StatusCode, string(out))
		return string(out)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	call(http.MethodPost, "boards",
		`{"boardId":"one","walName":"first","title":"One","steps":[{"stepId":"a","title":"A"},{"stepId":"b","title":"B","dependsOnStepIds":["a"]}]}`, 200)
	call(http.MethodPatch, "boards/one/steps/a", `{"status":"STEP_STATUS_COMPLETED","resultSummary":"fine"}`, 200)
	before := call(http.MethodGet, "wal/first.wal.jsonl", "", 200)
	replayed := must.Value(wal.Replay(strings.NewReader(before)))(t)
	require.EqualValues(t, 5, replayed.Lines)
	require.Equal(t, "fine", replayed.Board.GetSteps()[0].GetResultSummary())
	http.DefaultClient.CloseIdleConnections()
	s.Down()
	s.Up()
	require.Equal(t, before, call(http.MethodGet, "wal/first.wal.jsonl", "", 200))
	followed := make(chan string, 1)
	ctx := dev.Within(t)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet,
			s.URL()+"/v1/sessions/keeper/wal/first.wal.jsonl?follow=true", nil)
		if err != nil {
			followed <- err.Error()
			return
		}
		resp, err := proc.HTTP.Do(req)
		if err != nil {
			followed <- err.Error()
			return
		}
		defer func() { _ = resp.Body.Close() }()
		out, _ := io.ReadAll(resp.Body) // cut short, it is not equal below
		followed <- string(out)
	}()
	call(http.MethodPost, "boards/one:cancel", `{"reason":"enough"}`, 200)
	all := <-followed
	require.True(t, strings.HasPrefix(all, before))
	require.Equal(t, call(http.MethodGet, "wal/first.wal.jsonl", "", 200), all)
	require.Equal(t, all[len(before):], call(http.MethodGet, "wal/first.wal.jsonl?after_wal_seq=5", "", 200))
	replayed = must.Value(wal.Replay(bytes.NewReader([]byte(all))))(t)
	require.Equal(t, "enough", replayed.Board.GetReason())
	require.Contains(t, call(http.MethodGet, "wal/none.wal.jsonl", "", 404), "NOT_FOUND")
	require.Contains(t, call(http.MethodGet, "wal/first.wal.jsonl?colour=red", "", 400), "UNKNOWN_FIELD")
	require.Contains(t, call(http.MethodGet, "wal/first.txt", "", 404), "NOT_FOUND")
}
