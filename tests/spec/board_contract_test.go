package spec

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/tests/dev"
)

const (
	pending   = boardv1.StepStatus_STEP_STATUS_PENDING
	ready     = boardv1.StepStatus_STEP_STATUS_READY
	claimed   = boardv1.StepStatus_STEP_STATUS_CLAIMED
	running   = boardv1.StepStatus_STEP_STATUS_RUNNING
	blocked   = boardv1.StepStatus_STEP_STATUS_BLOCKED
	completed = boardv1.StepStatus_STEP_STATUS_COMPLETED
	failed    = boardv1.StepStatus_STEP_STATUS_FAILED
	cancelled = boardv1.StepStatus_STEP_STATUS_CANCELLED
)

// TestBoardContract_QuerySteps proves the orchestrator's filters, the default that
// hides steps that have ended, the order and the pages of QuerySteps.
func TestBoardContract_QuerySteps(t *testing.T) {
	b := newBoards(t)
	other := step("other")
	other.WorkerPoolId = "other"
	b.create("one", step("z"), step("a"), step("m", "z"), step("done"), step("bad"), step("gone"), step("stuck"), other)
	require.NoError(t, b.set("one", "done", completed))
	require.NoError(t, b.set("one", "bad", failed))
	require.NoError(t, b.set("one", "gone", cancelled))
	require.NoError(t, b.set("one", "stuck", blocked))
	run := b.dispatch("one", "default", "a")
	must.Value(run.claim("a"))(t)

	for name, c := range map[string]struct {
		req  *boardv1.QueryStepsRequest
		want []string
	}{
		"by default in order of creation, without those that have ended": {
			&boardv1.QueryStepsRequest{},
			[]string{"z", "a", "m", "stuck", "other"},
		},
		"with those that have ended": {
			&boardv1.QueryStepsRequest{IncludeTerminalSteps: true}, []string{
				"z", "a", "m", "done", "bad", "gone",
				"stuck", "other",
			},
		},
		"of several statuses, still in order of creation": {
			&boardv1.QueryStepsRequest{Statuses: []boardv1.StepStatus{blocked, claimed}}, []string{"a", "stuck"},
		},
		"a terminal status alone shows nothing": {
			&boardv1.QueryStepsRequest{Statuses: []boardv1.StepStatus{failed}}, []string{},
		},
		"a terminal status on request": {
			&boardv1.QueryStepsRequest{Statuses: []boardv1.StepStatus{failed}, IncludeTerminalSteps: true},
			[]string{"bad"},
		},
		"of a pool": {
			&boardv1.QueryStepsRequest{WorkerPoolId: "other"}, []string{"other"},
		},
		"claimed by": {
			&boardv1.QueryStepsRequest{ClaimedByAgentId: "worker-1"}, []string{"a"},
		},
		"claimed by somebody else": {
			&boardv1.QueryStepsRequest{ClaimedByAgentId: "worker-2"}, []string{},
		},
	} {
		c.req.BoardId = "one"
		got, truncated := b.query(c.req)
		require.Equal(t, c.want, got, name)
		require.False(t, truncated, name)
	}
	got, truncated := b.query(&boardv1.QueryStepsRequest{BoardId: "one", Limit: 2, Offset: 1})
	require.Equal(t, []string{"a", "m"}, got)
	require.True(t, truncated)

	// The default page has 50 steps.
	var many []*boardv1.StepInput
	for i := range 60 {
		many = append(many, step(fmt.Sprintf("s%02d", i)))
	}
	b.create("many", many...)
	got, truncated = b.query(&boardv1.QueryStepsRequest{BoardId: "many"})
	require.Len(t, got, 50)
	require.True(t, truncated)

	// A board that has ended is read, and not written.
	must.Value(b.Boards.CancelBoard(dev.Within(t), &boardv1.CancelBoardRequest{SessionId: session, BoardId: "many"}))(t)
	got, _ = b.query(&boardv1.QueryStepsRequest{BoardId: "many", IncludeTerminalSteps: true, Limit: 3})
	require.Equal(t, []string{"s00", "s01", "s02"}, got)
	require.ErrorIs(t, b.set("many", "s00", pending), fault.TaskTerminal)
}

// TestBoardContract_AWorkersCandidates proves what a run's query shows: ready steps
// of its pool within its scope, five by default, and what the loser of a claim
// finds when it queries again.
func TestBoardContract_AWorkersCandidates(t *testing.T) {
	b := newBoards(t)
	steps := []*boardv1.StepInput{step("first"), step("later", "first")}
	for i := range 7 {
		steps = append(steps, step(fmt.Sprint("s", i)))
	}
	elsewhere := step("elsewhere")
	elsewhere.WorkerPoolId = "other"
	b.create("one", append(steps, elsewhere)...)

	run := b.dispatch("one", "default")
	got := run.query(&boardv1.QueryStepsRequest{})
	require.Equal(t, []string{"first", "s0", "s1", "s2", "s3"}, stepIDs(got))
	require.True(t, got.GetTruncated())
	require.Equal(t, []string{"first", "s0", "s1", "s2", "s3", "s4", "s5", "s6"},
		stepIDs(run.query(&boardv1.QueryStepsRequest{Limit: 50})))

	scoped := b.dispatch("one", "default", "s6", "later", "s2")
	require.Equal(t, []string{"s2", "s6"}, stepIDs(scoped.query(&boardv1.QueryStepsRequest{})))

	// Two runs want one step. The second one is refused, which is not its failure,
	// queries again and claims another one.
	must.Value(scoped.claim("s2"))(t)
	before := b.wal("one", 0)
	must.Refuse(run.claim("s2"))(t, fault.StepAlreadyClaimed)
	require.Equal(t, before, b.wal("one", 0), "a lost claim writes no line")
	left := stepIDs(run.query(&boardv1.QueryStepsRequest{Limit: 50}))
	require.NotContains(t, left, "s2")
	must.Value(run.claim(left[0]))(t)

	// Nothing to claim is a normal answer, and writes no line.
	empty := b.dispatch("one", "default", "later")
	require.True(t, empty.query(&boardv1.QueryStepsRequest{}).GetNoStepClaimed())
	before = b.wal("one", 0)
	none := must.Value(empty.claim(""))(t)
	require.True(t, none.GetNoStepClaimed())
	require.Nil(t, none.GetStep())
	require.Equal(t, before, b.wal("one", 0))
}

// TestBoardContract_EachReportHasItsEvent proves which line each report writes, and
// that the reports that end a run's work on its step end the lease as well.
func TestBoardContract_EachReportHasItsEvent(t *testing.T) {
	b := newBoards(t)
	for to, want := range map[boardv1.StepStatus]string{
		blocked: "task_step_blocked", completed: "task_step_completed", failed: "task_step_failed",
		cancelled: "task_step_cancelled",
	} {
		for _, started := range []bool{false, true} {
			board := fmt.Sprintf("%s-%v", want, started)
			b.create(board, step("a"))
			run := b.dispatch(board, "default")
			must.Value(run.claim("a"))(t)
			s := b.step(board, "a")
			require.Equal(t, claimed, s.GetStatus(), "claiming does not start the step")
			require.NotEmpty(t, s.GetClaimedByAgentId())
			require.Equal(t, run.id, s.GetClaimedByRunId())
			require.NotNil(t, s.GetLeaseExpiresAt())
			if started {
				at := b.get(board).GetRevision()
				require.NoError(t, run.report(&boardv1.UpdateStepRequest{StepId: "a", Status: running}))
				require.NoError(t, run.report(&boardv1.UpdateStepRequest{StepId: "a", Status: running}))
				require.Equal(t, []string{"task_step_started", "task_step_updated"}, types(b.wal(board, at)))
			}
			at, what := b.get(board).GetRevision(), "what came of it"
			require.NoError(t, run.report(&boardv1.UpdateStepRequest{
				StepId: "a", Status: to, ResultSummary: &what, ArtifactIds: []string{"file-1"},
			}))
			lines := b.wal(board, at)
			require.Equal(t, []string{want}, types(lines))
			require.NotEmpty(t, lines[0].Actor)
			s = b.step(board, "a")
			require.Equal(t, to, s.GetStatus())
			require.Equal(t, what, s.GetResultSummary())
			require.Equal(t, []string{"file-1"}, s.GetArtifactIds())
			require.Empty(t, s.GetClaimedByAgentId()+s.GetClaimedByRunId())
			require.Nil(t, s.GetLeaseExpiresAt())
			got, _ := b.query(&boardv1.QueryStepsRequest{BoardId: board, Statuses: []boardv1.StepStatus{ready}})
			require.Empty(t, got, "it can be claimed by nobody")
			require.Error(t, run.report(&boardv1.UpdateStepRequest{StepId: "a", Status: running}), "the lease is over")
			require.Equal(t, []string{want}, types(b.wal(board, at)))
			run.stop()
		}
	}
}

// TestBoardContract_ContentGoesThroughUpdateBoard changes every field of contents
// in every status that allows it, and proves that nothing else can.
func TestBoardContract_ContentGoesThroughUpdateBoard(t *testing.T) {
	b := newBoards(t)
	b.create("one", step("dep"), step("pending", "dep"), step("ready"), step("blocked"), step("failed"),
		step("claimed"), step("cancelled"), step("completed"))
	require.NoError(t, b.set("one", "blocked", blocked))
	require.NoError(t, b.set("one", "failed", failed))
	require.NoError(t, b.set("one", "cancelled", cancelled))
	require.NoError(t, b.set("one", "completed", completed))
	run := b.dispatch("one", "default", "claimed")
	must.Value(run.claim("claimed"))(t)

	title, summary, pool, no := "New title", "New summary", "other", false
	all := &boardv1.StepFields{
		Title: &title, Summary: &summary, WorkerPoolId: &pool, Required: &no,
		DependsOnStepIds: &boardv1.StepList{StepIds: []string{"dep"}},
	}
	for id, after := range map[string]boardv1.StepStatus{
		"pending": pending, "ready": pending, "blocked": blocked,
		"failed": failed, "claimed": claimed,
	} {
		at := b.get("one").GetRevision()
		require.NoError(t, b.patch("one", &boardv1.Operation{
			Op: boardv1.OperationKind_OPERATION_KIND_UPDATE_STEP, StepId: id, Fields: all,
		}), id)
		s := b.step("one", id)
		require.Equal(t, []string{title, summary, pool}, []string{s.GetTitle(), s.GetSummary(), s.GetWorkerPoolId()},
			id)
		require.False(t, s.GetRequired())
		require.Equal(t, []string{"dep"}, s.GetDependsOnStepIds())
		require.Equal(t, after, s.GetStatus(), "%s: only pending and ready steps are looked at again", id)
		require.Equal(t, "task_updated", types(b.wal("one", at))[0])
		require.NotContains(t, types(b.wal("one", at)), "task_step_updated")
	}
	text := &boardv1.StepFields{Title: &title, Summary: &summary}
	for id, stays := range map[string]boardv1.StepStatus{"completed": completed, "cancelled": cancelled} {
		require.NoError(t, b.patch("one", &boardv1.Operation{
			Op: boardv1.OperationKind_OPERATION_KIND_UPDATE_STEP, StepId: id, Fields: text,
		}))
		require.Equal(t, stays, b.step("one", id).GetStatus())
		require.Equal(t, title, b.step("one", id).GetTitle())
	}

	// The board's own texts, each optional.
	require.NoError(t, b.patch("one", &boardv1.Operation{
		Op:   boardv1.OperationKind_OPERATION_KIND_UPDATE_TASK,
		Task: &boardv1.UpdateTask{Summary: &summary},
	}))
	require.Equal(t, []string{"Board one", summary}, []string{b.get("one").GetTitle(), b.get("one").GetSummary()})
	require.NoError(t, b.patch("one", &boardv1.Operation{
		Op:   boardv1.OperationKind_OPERATION_KIND_UPDATE_TASK,
		Task: &boardv1.UpdateTask{Title: &title},
	}))
	require.Equal(t, []string{title, summary}, []string{b.get("one").GetTitle(), b.get("one").GetSummary()})

	// A new step has the defaults, and those it names.
	require.NoError(t, b.patch("one",
		&boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_ADD_STEP, Step: step("plain")},
		&boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_ADD_STEP, Step: &boardv1.StepInput{
			StepId: "named", Title: "N", WorkerPoolId: pool, Required: &no,
		}}))
	require.True(t, b.step("one", "plain").GetRequired())
	require.Equal(t, "default", b.step("one", "plain").GetWorkerPoolId())
	require.False(t, b.step("one", "named").GetRequired())
	require.Equal(t, pool, b.step("one", "named").GetWorkerPoolId())

	// The tool that reports on a step takes none of these fields.
	for _, field := range []string{"title", "summary", "depends_on_step_ids", "worker_pool_id", "required"} {
		got := b.tool("board_update_step", map[string]any{
			"task_id": "one", "step_id": "plain", "status": "completed",
			field: "x",
		})
		require.Equal(t, "unknown_field", got.GetError().GetKind(), field)
	}
	require.Equal(t, ready, b.step("one", "plain").GetStatus())
}

// TestBoardContract_WhatMayBeDeleted proves the statuses in which a step can be deleted.
func TestBoardContract_WhatMayBeDeleted(t *testing.T) {
	b := newBoards(t)
	b.create("one", step("ready"), step("dep"), step("pending", "dep"), step("cancelled"), step("blocked"),
		step("failed"), step("completed"), step("claimed"), step("running"))
	for id, to := range map[string]boardv1.StepStatus{
		"cancelled": cancelled, "blocked": blocked, "failed": failed,
		"completed": completed,
	} {
		require.NoError(t, b.set("one", id, to))
	}
	for _, id := range []string{"claimed", "running"} {
		run := b.dispatch("one", "default", id)
		must.Value(run.claim(id))(t)
		if id == "running" {
			require.NoError(t, run.report(&boardv1.UpdateStepRequest{StepId: id, Status: running}))
		}
	}
	remove := func(id string) error {
		return b.patch("one", &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_DELETE_STEP, StepId: id})
	}
	for _, id := range []string{"blocked", "failed", "completed", "claimed", "running"} {
		require.ErrorIs(t, remove(id), fault.StepState, id)
	}
	require.ErrorIs(t, remove("dep"), fault.StepHasDependents)
	for _, id := range []string{"ready", "pending", "cancelled", "dep"} {
		require.NoError(t, remove(id), id)
	}
	require.Len(t, b.get("one").GetSteps(), 5)
}

// TestBoardContract_DiagnosticsAreDerived proves that a board is never blocked,
// failed or completed by itself, and that stalled and completeable are computed on
// reads and write no line.
func TestBoardContract_DiagnosticsAreDerived(t *testing.T) {
	b := newBoards(t)
	b.create("one", step("a"), step("b", "a"))
	require.False(t, b.get("one").GetDiagnostics().GetStalled())
	require.NoError(t, b.set("one", "a", failed))
	at := b.get("one")
	require.Equal(t, boardv1.BoardStatus_BOARD_STATUS_RUNNING, at.GetStatus(),
		"a failed step fails no board, and nothing to do blocks none")
	require.True(t, at.GetDiagnostics().GetStalled())
	require.Equal(t, []string{"a", "b"}, at.GetDiagnostics().GetStalledByStepIds())
	require.False(t, at.GetDiagnostics().GetCompleteable())
	inspected := must.Value(b.Boards.InspectBoard(dev.Within(t), &boardv1.InspectBoardRequest{
		SessionId: session,
		BoardId:   "one",
	}))(t)
	require.True(t, inspected.GetBoard().GetDiagnostics().GetStalled())
	require.Equal(t, at.GetRevision(), b.get("one").GetRevision())
	require.Empty(t, b.wal("one", at.GetRevision()), "diagnostics write no line")

	require.NoError(t, b.patch("one", &boardv1.Operation{
		Op:     boardv1.OperationKind_OPERATION_KIND_REOPEN_STEP,
		StepId: "a",
	}))
	require.NoError(t, b.set("one", "a", completed))
	require.NoError(t, b.set("one", "b", completed))
	at = b.get("one")
	require.Equal(t, boardv1.BoardStatus_BOARD_STATUS_RUNNING, at.GetStatus(),
		"the orchestrator alone completes a board")
	require.True(t, at.GetDiagnostics().GetCompleteable())
	require.Empty(t, b.wal("one", at.GetRevision()))
}

// TestBoardContract_OptionalSteps proves what required=false changes and what not.
func TestBoardContract_OptionalSteps(t *testing.T) {
	b := newBoards(t)
	complete := func(board string) error {
		return must.Err(b.Boards.CompleteBoard(dev.Within(t), &boardv1.CompleteBoardRequest{
			SessionId: session,
			BoardId:   board,
		}))
	}
	// A required step behind an optional one waits for it all the same.
	b.create("one", optional(step("extra")), step("needed", "extra"))
	require.Equal(t, pending, b.step("one", "needed").GetStatus())
	require.NoError(t, b.set("one", "extra", failed))
	require.Equal(t, pending, b.step("one", "needed").GetStatus(), "failed is not completed")
	require.ErrorIs(t, complete("one"), fault.BoardNotCompleteable)
	require.NoError(t, b.patch("one", &boardv1.Operation{
		Op:     boardv1.OperationKind_OPERATION_KIND_REOPEN_STEP,
		StepId: "extra",
	}))
	require.NoError(t, b.set("one", "extra", completed))
	require.Equal(t, ready, b.step("one", "needed").GetStatus())
	require.NoError(t, b.set("one", "needed", completed))
	require.NoError(t, complete("one"))

	// Cancelled is not completed either.
	b.create("two", optional(step("extra")), step("needed", "extra"))
	require.NoError(t, b.set("two", "extra", cancelled))
	require.Equal(t, pending, b.step("two", "needed").GetStatus())

	// An optional step that is held keeps the board open; others end with it.
	b.create("three", step("a"), optional(step("held")), optional(step("free")), optional(step("behind", "free")))
	require.NoError(t, b.set("three", "a", completed))
	run := b.dispatch("three", "default", "held")
	must.Value(run.claim("held"))(t)
	require.ErrorIs(t, complete("three"), fault.BoardNotCompleteable)
	require.NoError(t, run.report(&boardv1.UpdateStepRequest{StepId: "held", Status: blocked}))
	at := b.get("three").GetRevision()
	require.NoError(t, complete("three"))
	lines := b.wal("three", at)
	require.Equal(t, []string{"task_step_cancelled", "task_step_cancelled", "task_completed"}, types(lines))
	require.Equal(t, []string{"free", "behind"}, []string{lines[0].StepID, lines[1].StepID})
	require.Equal(t, blocked, b.step("three", "held").GetStatus(), "an optional step that is blocked stays as it is")
}

// TestBoardContract_EveryTool calls each of the eleven tools that an orchestrator
// or a worker knows by both of its names.
func TestBoardContract_EveryTool(t *testing.T) {
	b := newBoards(t)
	ok := func(name string, args map[string]any) map[string]any {
		t.Helper()
		got := b.tool(name, args)
		require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, got.GetStatus(), "%s: %v", name, got.GetError())
		return got.GetResult().AsMap()
	}
	steps := []any{map[string]any{"step_id": "a", "title": "A"}}
	for _, sep := range []string{"_", "."} {
		name := func(verb string) string { return "agent" + sep + "task_" + verb }
		require.Equal(t, "user", ok(name("template"), nil)["role"])
		for _, end := range []string{"complete", "fail", "cancel"} {
			id := end + map[string]string{"_": "-1", ".": "-2"}[sep]
			made := ok(name("create"), map[string]any{"task_id": id, "wal_name": id, "title": "T", "steps": steps})
			require.NotEmpty(t, made["event_ids"])
			require.NotContains(t, made["board"], "steps", "a write answers with a summary")
			ok(name("update"),
				map[string]any{
					"task_id": id, "operations": []any{
						map[string]any{"op": "update_task", "task": map[string]any{"title": "U"}},
					},
				})
			require.Len(t, ok(name("query_steps"), map[string]any{"task_id": id})["steps"], 1)
			ok(name("update_step"), map[string]any{"task_id": id, "step_id": "a", "status": "completed"})
			require.Len(t, ok(name("list"), nil)["boards"], 1)
			ok(name(end), map[string]any{"task_id": id, "reason": "enough"})
			board := ok(name("get"), map[string]any{"task_id": id})["board"].(map[string]any)
			require.Equal(t, map[string]string{"complete": "completed", "fail": "failed", "cancel": "cancelled"}[end],
				board["status"])
			require.Equal(t, "U", board["title"])
			require.Equal(t, session, board["created_by_agent_id"])
			require.Empty(t, ok(name("list"), nil)["boards"])
		}
		// Claiming is a run's; an orchestrator has no such tool.
		require.Equal(t, "tool_not_available", b.tool(name("claim_step"), map[string]any{"task_id": "x"}).GetError().
			GetKind())
		// Who acts comes from the credential; arguments that claim it are refused.
		for _, field := range []string{"actor_agent_id", "actor_run_id", "session_id"} {
			require.Equal(t, "unknown_field",
				b.tool(name("get"), map[string]any{"task_id": "complete-1", field: "other"}).GetError().GetKind(),
				field)
		}
	}
}
