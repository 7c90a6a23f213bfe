package board

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
	"quartet/services/board/model"
)

// TestBoardContract_Records proves that every field of a board and of a step that
// the contract names is there, and that nothing else decides an order.
func TestBoardContract_Records(t *testing.T) {
	b := newContract(t)
	a := in("a")
	a.Summary = "What a does"
	must.Value(b.service.CreateBoard(b.owner(), &boardv1.CreateBoardRequest{
		SessionId: owner, BoardId: "one", WalName: "another-name", Title: "One", Summary: "What it is for",
		Steps: []*boardv1.StepInput{a, in("b", "a")},
	}))(t)
	run := b.dispatch("one", "default", "a")
	must.Value(run.claim("a"))(t)
	held := b.step("one", "a")
	what := "half of it"
	b.clk.Advance(time.Second)
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
}

// TestBoardContract_LinesOfALog proves what every line of a board's log holds.
func TestBoardContract_LinesOfALog(t *testing.T) {
	b := newContract(t)
	b.create("one", in("a"), in("b", "a"))
	run := b.dispatch("one", "default", "a")
	must.Value(run.claim("a"))(t)
	require.NoError(t, run.report(&boardv1.UpdateStepRequest{StepId: "a", Status: completed}))
	got := must.Value(b.service.ReadWal(b.owner(), &boardv1.ReadWalRequest{SessionId: owner, WalName: "one-wal"}))(t)
	ids := map[string]bool{}
	lines := b.lines("one", 0)
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
// workers that do not stop are not waited for without end.
func TestBoardContract_EndingABoard(t *testing.T) {
	b := newContract(t)
	for _, fail := range []bool{true, false} {
		id := fmt.Sprintf("fail-%v", fail)
		b.create(id, in("ready"), in("pending", "ready"), in("blocked"), in("claimed"), in("running"),
			in("completed"), in("failed"), in("cancelled"))
		stays := map[string]boardv1.StepStatus{"completed": completed, "failed": failed, "cancelled": cancelled}
		for name, to := range stays {
			require.NoError(t, b.say(id, name, to))
		}
		require.NoError(t, b.say(id, "blocked", blocked))
		for _, name := range []string{"claimed", "running"} {
			run := b.dispatch(id, "default", name)
			must.Value(run.claim(name))(t)
			if name == "running" {
				require.NoError(t, run.report(&boardv1.UpdateStepRequest{StepId: name, Status: running}))
			}
		}
		at, to, reason, line := b.get(id).GetRevision(), cancelled, "task_cancelled", "task_step_cancelled"
		if fail {
			to, reason, line = failed, "task_failed", "task_step_failed"
		}
		ended := make(chan []string, 1)
		go func() {
			if fail {
				ended <- must.Value(b.service.FailBoard(b.owner(), &boardv1.FailBoardRequest{
					SessionId: owner, BoardId: id,
				}))(t).GetTimedOutRunIds()
				return
			}
			ended <- must.Value(b.service.CancelBoard(b.owner(), &boardv1.CancelBoardRequest{
				SessionId: owner, BoardId: id,
			}))(t).GetTimedOutRunIds()
		}()
		require.Eventually(t, func() bool {
			_, set := b.service.endings.At(endingKey(model.BoardKey{Namespace: "acme", Session: owner, WAL: id + "-wal"}))
			return set
		}, time.Minute, time.Millisecond)
		b.clk.Advance(DefaultCancelWait)
		timedOut := <-ended
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
		lines := types(b.lines(id, at))
		require.Equal(t, []string{line, line, line, line, line, reason}, lines)
	}
}

// TestBoardContract_SummaryContents proves which parts a summary for a prompt has.
func TestBoardContract_SummaryContents(t *testing.T) {
	b := newContract(t)
	other := in("elsewhere")
	other.WorkerPoolId = "other"
	b.create("one", in("free"), in("behind", "free"), in("stuck"), in("mine"), in("theirs"), other)
	b.create("two", in("x"))
	must.Value(b.service.CancelBoard(b.owner(), &boardv1.CancelBoardRequest{SessionId: owner, BoardId: "two"}))(t)
	require.NoError(t, b.say("one", "stuck", blocked))
	for _, name := range []string{"mine", "theirs"} { // of worker-1 and worker-2
		run := b.dispatch("one", "default", name)
		must.Value(run.claim(name))(t)
	}
	got := must.Value(b.service.GetSummary(b.owner(), &boardv1.GetSummaryRequest{
		SessionId: owner, WorkerId: "worker-1", WorkerPoolId: "other",
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

// TestBoardContract_ARunThatEnds proves that a run which ends while it holds a step
// fails that step, with its reason and its event, and no other.
func TestBoardContract_ARunThatEnds(t *testing.T) {
	b := newContract(t)
	b.create("one", in("a"), in("b"))
	first, second := b.dispatch("one", "default", "a"), b.dispatch("one", "default", "b")
	must.Value(first.claim("a"))(t)
	must.Value(second.claim("b"))(t)
	at := b.get("one").GetRevision()
	end := must.Value(b.service.FinishWorkerRun(first.ctx(), &boardv1.FinishWorkerRunRequest{
		SessionId: owner, BoardId: "one", WorkerResult: "gave up",
	}))(t)
	require.Equal(t, failed, end.GetRun().GetStepStatus())
	lines := b.lines("one", at)
	require.Equal(t, []string{"task_step_failed"}, types(lines))
	require.Equal(t, "a", lines[0].StepID)
	require.Equal(t, "worker_finished_without_terminal_step_status", b.step("one", "a").GetReason())
	require.Equal(t, "worker_finished_without_terminal_step_status", b.step("one", "a").GetResultSummary())
	require.Equal(t, claimed, b.step("one", "b").GetStatus())
	require.Equal(t, second.id, b.step("one", "b").GetClaimedByRunId())
}
