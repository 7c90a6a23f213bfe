package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/tests/dev"
)

// TestBoardContract_Records proves that every field of a board and of a step that
// the contract names is there, and that nothing else decides an order.
func TestBoardContract_Records(t *testing.T) {
	b := newBoards(t)
	a := step("a")
	a.Summary = "What a does"
	must.Value(b.Boards.CreateBoard(dev.Within(t), &boardv1.CreateBoardRequest{
		SessionId: session, BoardId: "one", WalName: "another-name", Title: "One", Summary: "What it is for",
		Steps: []*boardv1.StepInput{a, step("b", "a")},
	}))(t)
	run := b.dispatch("one", "default", "a")
	must.Value(run.claim("a"))(t)
	held := b.step("one", "a")
	what := "half of it"
	require.NoError(t, run.report(&boardv1.UpdateStepRequest{
		StepId: "a", Status: running, ResultSummary: &what, ArtifactIds: []string{"log-1"},
	}))
	require.True(t, b.step("one", "a").GetLeaseExpiresAt().AsTime().After(held.GetLeaseExpiresAt().AsTime()),
		"a report that ends nothing renews the lease")

	board := map[string]any{}
	raw := must.Value(protojson.MarshalOptions{UseProtoNames: true}.Marshal(b.get("one")))(t)
	require.NoError(t, json.Unmarshal(raw, &board))
	for _, field := range []string{
		"board_id", "wal_path", "title", "summary", "status", "root_step_ids", "steps",
		"created_by_agent_id", "created_at", "updated_at",
	} {
		require.NotEmpty(t, board[field], field)
	}
	require.Contains(t, board["wal_path"], "another-name.wal.jsonl", "the names of board and log need not agree")
	s := board["steps"].([]any)[0].(map[string]any)
	for _, field := range []string{
		"step_id", "title", "summary", "status", "required", "worker_pool_id", "claimed_by_agent_id",
		"claimed_by_run_id", "lease_expires_at", "result_summary", "artifact_ids", "updated_at",
	} {
		require.NotEmpty(t, s[field], field)
	}
	require.Equal(t, []any{"a"}, board["steps"].([]any)[1].(map[string]any)["depends_on_step_ids"])
	for _, field := range []string{"priority", "order"} {
		got := b.tool("board_create", map[string]any{
			"task_id": "two", "wal_name": "two", "title": "T",
			"steps": []any{map[string]any{"step_id": "a", "title": "A", field: 1}},
		})
		require.Equal(t, "unknown_field", got.GetError().GetKind(), field)
	}
}

// TestBoardContract_LinesOfALog proves what every line of a board's log holds.
func TestBoardContract_LinesOfALog(t *testing.T) {
	b := newBoards(t)
	b.create("one", step("a"), step("b", "a"))
	run := b.dispatch("one", "default", "a")
	must.Value(run.claim("a"))(t)
	require.NoError(t, run.report(&boardv1.UpdateStepRequest{StepId: "a", Status: completed}))
	got := must.Value(b.Boards.ReadWal(dev.Within(t), &boardv1.ReadWalRequest{SessionId: session, WalName: "one"}))(t)
	ids := map[string]bool{}
	lines := b.wal("one", 0)
	require.Equal(t, []string{
		"task_created", "task_step_ready", "task_running", "task_step_claimed",
		"task_step_completed", "task_step_ready",
	}, types(lines))
	for i, raw := range bytes.Split(bytes.TrimSpace(got.GetLines()), []byte("\n")) {
		var line map[string]any
		require.NoError(t, json.Unmarshal(raw, &line), "each line is a JSON object")
		for _, field := range []string{
			"wal_seq", "session_id", "event_id", "event_type", "actor_agent_id",
			"actor_run_id", "task_id", "payload", "created_at",
		} {
			require.Contains(t, line, field, "%s", raw)
		}
		require.EqualValues(t, i+1, line["wal_seq"], "without a gap")
		ids[fmt.Sprint(line["event_id"])] = true
		must.Value(time.Parse(time.RFC3339Nano, fmt.Sprint(line["created_at"])))(t)
		if lines[i].StepID != "" {
			require.Contains(t, []string{"a", "b"}, line["step_id"])
		}
		if lines[i].Type == "task_step_claimed" || lines[i].Type == "task_step_completed" {
			require.Equal(t, run.id, line["actor_run_id"])
			require.Equal(t, "worker-1", line["actor_agent_id"])
		}
	}
	require.Len(t, ids, len(lines), "each event has an id of its own")
}

// TestBoardContract_EndingABoard fails and cancels boards with a step in every
// status: what has ended stays, everything else ends with the board's reason, and
// workers that do not stop are waited for no longer than the setting says.
func TestBoardContract_EndingABoard(t *testing.T) {
	b := newBoards(t)
	b.Down()
	b.Cfg.CancelWait = 100 * time.Millisecond
	b.Up()
	for _, fail := range []bool{true, false} {
		id := fmt.Sprintf("fail-%v", fail)
		b.create(id, step("ready"), step("pending", "ready"), step("blocked"), step("claimed"), step("running"),
			step("completed"), step("failed"), step("cancelled"))
		stays := map[string]boardv1.StepStatus{"completed": completed, "failed": failed, "cancelled": cancelled}
		for name, to := range stays {
			require.NoError(t, b.set(id, name, to))
		}
		require.NoError(t, b.set(id, "blocked", blocked))
		for _, name := range []string{"claimed", "running"} {
			run := b.dispatch(id, "default", name)
			must.Value(run.claim(name))(t)
			if name == "running" {
				require.NoError(t, run.report(&boardv1.UpdateStepRequest{StepId: name, Status: running}))
			}
		}
		at, to, reason, line, last := b.get(id).GetRevision(), cancelled, "task_cancelled", "task_step_cancelled",
			"task_cancelled"
		var timedOut []string
		if fail {
			to, reason, line, last = failed, "task_failed", "task_step_failed", "task_failed"
			got, err := b.Boards.FailBoard(dev.Within(t), &boardv1.FailBoardRequest{SessionId: session, BoardId: id})
			require.NoError(t, err)
			timedOut = got.GetTimedOutRunIds()
		} else {
			timedOut = must.Value(b.Boards.CancelBoard(dev.Within(t), &boardv1.CancelBoardRequest{
				SessionId: session,
				BoardId:   id,
			}))(t).GetTimedOutRunIds()
		}
		require.Len(t, timedOut, 2, "the workers did not stop, and held nothing up")
		for _, s := range b.get(id).GetSteps() {
			if was, ended := stays[s.GetStepId()]; ended {
				require.Equal(t, was, s.GetStatus(), s.GetStepId())
				require.NotEqual(t, reason, s.GetReason())
				continue
			}
			require.Equal(t, to, s.GetStatus(), s.GetStepId())
			require.Equal(t, reason, s.GetReason())
		}
		lines := types(b.wal(id, at))
		require.Equal(t, []string{line, line, line, line, line, last}, lines)
	}
}

// TestBoardContract_SummaryContents proves which parts a summary for a prompt has.
func TestBoardContract_SummaryContents(t *testing.T) {
	b := newBoards(t)
	other := step("elsewhere")
	other.WorkerPoolId = "other"
	b.create("one", step("free"), step("behind", "free"), step("stuck"), step("mine"), step("theirs"), other)
	b.create("two", step("x"))
	must.Value(b.Boards.CancelBoard(dev.Within(t), &boardv1.CancelBoardRequest{SessionId: session, BoardId: "two"}))(t)
	require.NoError(t, b.set("one", "stuck", blocked))
	for _, name := range []string{"mine", "theirs"} { // of worker-1 and worker-2
		run := b.dispatch("one", "default", name)
		must.Value(run.claim(name))(t)
	}
	got := must.Value(b.Boards.GetSummary(dev.Within(t), &boardv1.GetSummaryRequest{
		SessionId: session, WorkerId: "worker-1", WorkerPoolId: "other",
	}))(t)
	require.Contains(t, got.GetText(), "- one [running] Board one: 2 ready, 2 held, 1 blocked")
	require.NotContains(t, got.GetText(), "- two", "a board that has ended is not shown")
	at := -1
	for _, part := range []string{
		"## Held by you\n- one/mine [claimed]", "## Blocked or failed\n- one/stuck [blocked]",
		"## Held by workers\n- one/theirs [claimed]",
		"## Ready for your pool\n- one/elsewhere [ready]", "## Ready\n- one/free [ready]",
		"## Recent changes, newest first\n",
	} {
		require.Contains(t, got.GetText(), part)
		next := strings.Index(got.GetText(), part)
		require.Greater(t, next, at, "%s stands behind what matters more", part)
		at = next
	}
	require.Contains(t, got.GetText()[at:], "one: step_claimed theirs")
}
