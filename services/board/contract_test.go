package board

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

const (
	pending   = model.StepPending
	ready     = model.StepReady
	claimed   = model.StepClaimed
	running   = model.StepRunning
	blocked   = model.StepBlocked
	completed = model.StepCompleted
	failed    = model.StepFailed
	cancelled = model.StepCancelled
)

// contract is a rig whose runs choose their steps themselves.
type contract struct {
	*rig
	workers int
}

func newContract(t *testing.T) *contract { return &contract{rig: newRig(t)} }

// query reads the ids of steps as the orchestrator.
func (b *contract) query(req *boardv1.QueryStepsRequest) (ids []string, truncated bool) {
	b.t.Helper()
	req.SessionId = owner
	got := must.Value(b.service.QuerySteps(b.owner(), req))(b.t)
	return stepIDs(got), got.GetTruncated()
}

func stepIDs(got *boardv1.QueryStepsResponse) []string {
	ids := []string{}
	for _, s := range got.GetSteps() {
		ids = append(ids, s.GetStepId())
	}
	return ids
}

type walLine struct {
	Type   string `json:"event_type"`
	StepID string `json:"step_id"`
	Actor  string `json:"actor_agent_id"`
}

// lines reads the lines of a board's log behind a position.
func (b *contract) lines(board string, after int64) (lines []walLine) {
	b.t.Helper()
	got := must.Value(b.service.ReadWal(b.owner(), &boardv1.ReadWalRequest{
		SessionId: owner, WalName: board + "-wal", AfterWalSeq: after,
	}))(b.t)
	require.False(b.t, got.GetTruncated())
	for raw := range bytes.Lines(got.GetLines()) {
		var l walLine
		require.NoError(b.t, json.Unmarshal(raw, &l))
		lines = append(lines, l)
	}
	return lines
}

func types(lines []walLine) []string {
	out := []string{}
	for _, l := range lines {
		out = append(out, l.Type)
	}
	return out
}

// workerRun is a run of a worker of its own.
type workerRun struct {
	b                 *contract
	board, worker, id string
}

func (b *contract) dispatch(board, pool string, allowed ...string) *workerRun {
	b.t.Helper()
	b.workers++
	worker := fmt.Sprint("worker-", b.workers)
	return &workerRun{b: b, board: board, worker: worker, id: b.runIn(board, worker, pool, allowed...)}
}

func (w *workerRun) ctx() context.Context { return w.b.as(w.worker, w.id) }

func (w *workerRun) claim(id string) (*boardv1.ClaimStepResponse, error) {
	return w.b.service.ClaimStep(w.ctx(), &boardv1.ClaimStepRequest{SessionId: owner, BoardId: w.board, StepId: id})
}

func (w *workerRun) query(req *boardv1.QueryStepsRequest) *boardv1.QueryStepsResponse {
	w.b.t.Helper()
	req.SessionId, req.BoardId = owner, w.board
	return must.Value(w.b.service.QuerySteps(w.ctx(), req))(w.b.t)
}

func (w *workerRun) report(req *boardv1.UpdateStepRequest) error {
	req.SessionId, req.BoardId = owner, w.board
	return must.Err(w.b.service.UpdateStep(w.ctx(), req))
}

// TestBoardContract_QuerySteps proves the orchestrator's filters, the default that
// hides steps that have ended, the order and the pages of QuerySteps.
func TestBoardContract_QuerySteps(t *testing.T) {
	b := newContract(t)
	other := in("other")
	other.WorkerPoolId = "other"
	b.create("one", in("z"), in("a"), in("m", "z"), in("done"), in("bad"), in("gone"), in("stuck"), other)
	require.NoError(t, b.say("one", "done", completed))
	require.NoError(t, b.say("one", "bad", failed))
	require.NoError(t, b.say("one", "gone", cancelled))
	require.NoError(t, b.say("one", "stuck", blocked))
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
		many = append(many, in(fmt.Sprintf("s%02d", i)))
	}
	b.create("many", many...)
	got, truncated = b.query(&boardv1.QueryStepsRequest{BoardId: "many"})
	require.Len(t, got, 50)
	require.True(t, truncated)

	// A board that has ended is read, and not written.
	must.Value(b.service.CancelBoard(b.owner(), &boardv1.CancelBoardRequest{SessionId: owner, BoardId: "many"}))(t)
	got, _ = b.query(&boardv1.QueryStepsRequest{BoardId: "many", IncludeTerminalSteps: true, Limit: 3})
	require.Equal(t, []string{"s00", "s01", "s02"}, got)
	require.ErrorIs(t, b.say("many", "s00", pending), fault.TaskTerminal)
}

// TestBoardContract_AWorkersCandidates proves what a run's query shows: ready steps
// of its pool within its scope, five by default, and what the loser of a claim
// finds when it queries again.
func TestBoardContract_AWorkersCandidates(t *testing.T) {
	b := newContract(t)
	steps := []*boardv1.StepInput{in("first"), in("later", "first")}
	for i := range 7 {
		steps = append(steps, in(fmt.Sprint("s", i)))
	}
	elsewhere := in("elsewhere")
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
	before := b.lines("one", 0)
	must.Refuse(run.claim("s2"))(t, fault.StepAlreadyClaimed)
	require.Equal(t, before, b.lines("one", 0), "a lost claim writes no line")
	left := stepIDs(run.query(&boardv1.QueryStepsRequest{Limit: 50}))
	require.NotContains(t, left, "s2")
	must.Value(run.claim(left[0]))(t)

	// Nothing to claim is a normal answer, and writes no line.
	empty := b.dispatch("one", "default", "later")
	require.True(t, empty.query(&boardv1.QueryStepsRequest{}).GetNoStepClaimed())
	before = b.lines("one", 0)
	none := must.Value(empty.claim(""))(t)
	require.True(t, none.GetNoStepClaimed())
	require.Nil(t, none.GetStep())
	require.Equal(t, before, b.lines("one", 0))
}

// TestBoardContract_EachReportHasItsEvent proves which line each report writes, and
// that the reports that end a run's work on its step end the lease as well.
func TestBoardContract_EachReportHasItsEvent(t *testing.T) {
	b := newContract(t)
	for to, want := range map[boardv1.StepStatus]string{
		blocked: "task_step_blocked", completed: "task_step_completed", failed: "task_step_failed",
		cancelled: "task_step_cancelled",
	} {
		for _, started := range []bool{false, true} {
			board := fmt.Sprintf("%s-%v", want, started)
			b.create(board, in("a"))
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
				require.Equal(t, []string{"task_step_started", "task_step_updated"}, types(b.lines(board, at)))
			}
			at, what := b.get(board).GetRevision(), "what came of it"
			require.NoError(t, run.report(&boardv1.UpdateStepRequest{
				StepId: "a", Status: to, ResultSummary: &what, ArtifactIds: []string{"file-1"},
			}))
			lines := b.lines(board, at)
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
			require.Equal(t, []string{want}, types(b.lines(board, at)))
		}
	}
}

// TestBoardContract_ContentGoesThroughUpdateBoard changes every field of contents
// in every status that allows it, and proves that nothing else can.
func TestBoardContract_ContentGoesThroughUpdateBoard(t *testing.T) {
	b := newContract(t)
	b.create("one", in("dep"), in("pending", "dep"), in("ready"), in("blocked"), in("failed"),
		in("claimed"), in("cancelled"), in("completed"))
	require.NoError(t, b.say("one", "blocked", blocked))
	require.NoError(t, b.say("one", "failed", failed))
	require.NoError(t, b.say("one", "cancelled", cancelled))
	require.NoError(t, b.say("one", "completed", completed))
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
		require.NoError(t, b.update("one", &boardv1.Operation{
			Op: boardv1.OperationKind_OPERATION_KIND_UPDATE_STEP, StepId: id, Fields: all,
		}), id)
		s := b.step("one", id)
		require.Equal(t, []string{title, summary, pool}, []string{s.GetTitle(), s.GetSummary(), s.GetWorkerPoolId()},
			id)
		require.False(t, s.GetRequired())
		require.Equal(t, []string{"dep"}, s.GetDependsOnStepIds())
		require.Equal(t, after, s.GetStatus(), "%s: only pending and ready steps are looked at again", id)
		require.Equal(t, "task_updated", types(b.lines("one", at))[0])
		require.NotContains(t, types(b.lines("one", at)), "task_step_updated")
	}
	text := &boardv1.StepFields{Title: &title, Summary: &summary}
	for id, stays := range map[string]boardv1.StepStatus{"completed": completed, "cancelled": cancelled} {
		require.NoError(t, b.update("one", &boardv1.Operation{
			Op: boardv1.OperationKind_OPERATION_KIND_UPDATE_STEP, StepId: id, Fields: text,
		}))
		require.Equal(t, stays, b.step("one", id).GetStatus())
		require.Equal(t, title, b.step("one", id).GetTitle())
	}

	// The board's own texts, each optional.
	require.NoError(t, b.update("one", &boardv1.Operation{
		Op:   boardv1.OperationKind_OPERATION_KIND_UPDATE_TASK,
		Task: &boardv1.UpdateTask{Summary: &summary},
	}))
	require.Equal(t, []string{"Board one", summary}, []string{b.get("one").GetTitle(), b.get("one").GetSummary()})
	require.NoError(t, b.update("one", &boardv1.Operation{
		Op:   boardv1.OperationKind_OPERATION_KIND_UPDATE_TASK,
		Task: &boardv1.UpdateTask{Title: &title},
	}))
	require.Equal(t, []string{title, summary}, []string{b.get("one").GetTitle(), b.get("one").GetSummary()})

	// A new step has the defaults, and those it names.
	require.NoError(t, b.update("one",
		&boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_ADD_STEP, Step: in("plain")},
		&boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_ADD_STEP, Step: &boardv1.StepInput{
			StepId: "named", Title: "N", WorkerPoolId: pool, Required: &no,
		}}))
	require.True(t, b.step("one", "plain").GetRequired())
	require.Equal(t, "default", b.step("one", "plain").GetWorkerPoolId())
	require.False(t, b.step("one", "named").GetRequired())
	require.Equal(t, pool, b.step("one", "named").GetWorkerPoolId())
}

// TestBoardContract_WhatMayBeDeleted proves the statuses in which a step can be deleted.
func TestBoardContract_WhatMayBeDeleted(t *testing.T) {
	b := newContract(t)
	b.create("one", in("ready"), in("dep"), in("pending", "dep"), in("cancelled"), in("blocked"),
		in("failed"), in("completed"), in("claimed"), in("running"))
	for id, to := range map[string]boardv1.StepStatus{
		"cancelled": cancelled, "blocked": blocked, "failed": failed,
		"completed": completed,
	} {
		require.NoError(t, b.say("one", id, to))
	}
	for _, id := range []string{"claimed", "running"} {
		run := b.dispatch("one", "default", id)
		must.Value(run.claim(id))(t)
		if id == "running" {
			require.NoError(t, run.report(&boardv1.UpdateStepRequest{StepId: id, Status: running}))
		}
	}
	remove := func(id string) error {
		return b.update("one", &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_DELETE_STEP, StepId: id})
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
	b := newContract(t)
	b.create("one", in("a"), in("b", "a"))
	require.False(t, b.get("one").GetDiagnostics().GetStalled())
	require.NoError(t, b.say("one", "a", failed))
	at := b.get("one")
	require.Equal(t, boardv1.BoardStatus_BOARD_STATUS_RUNNING, at.GetStatus(),
		"a failed step fails no board, and nothing to do blocks none")
	require.True(t, at.GetDiagnostics().GetStalled())
	require.Equal(t, []string{"a", "b"}, at.GetDiagnostics().GetStalledByStepIds())
	require.False(t, at.GetDiagnostics().GetCompleteable())
	inspected := must.Value(b.service.InspectBoard(b.owner(), &boardv1.InspectBoardRequest{
		SessionId: owner, BoardId: "one",
	}))(t)
	require.True(t, inspected.GetBoard().GetDiagnostics().GetStalled())
	require.Equal(t, at.GetRevision(), b.get("one").GetRevision())
	require.Empty(t, b.lines("one", at.GetRevision()), "diagnostics write no line")

	require.NoError(t, b.update("one", &boardv1.Operation{
		Op:     boardv1.OperationKind_OPERATION_KIND_REOPEN_STEP,
		StepId: "a",
	}))
	require.NoError(t, b.say("one", "a", completed))
	require.NoError(t, b.say("one", "b", completed))
	at = b.get("one")
	require.Equal(t, boardv1.BoardStatus_BOARD_STATUS_RUNNING, at.GetStatus(),
		"the orchestrator alone completes a board")
	require.True(t, at.GetDiagnostics().GetCompleteable())
	require.Empty(t, b.lines("one", at.GetRevision()))
}

// TestBoardContract_OptionalSteps proves what required=false changes and what not.
func TestBoardContract_OptionalSteps(t *testing.T) {
	b := newContract(t)
	complete := func(board string) error {
		return must.Err(b.service.CompleteBoard(b.owner(), &boardv1.CompleteBoardRequest{
			SessionId: owner,
			BoardId:   board,
		}))
	}
	// A required step behind an optional one waits for it all the same.
	b.create("one", optional(in("extra")), in("needed", "extra"))
	require.Equal(t, pending, b.step("one", "needed").GetStatus())
	require.NoError(t, b.say("one", "extra", failed))
	require.Equal(t, pending, b.step("one", "needed").GetStatus(), "failed is not completed")
	require.ErrorIs(t, complete("one"), fault.BoardNotCompleteable)
	require.NoError(t, b.update("one", &boardv1.Operation{
		Op:     boardv1.OperationKind_OPERATION_KIND_REOPEN_STEP,
		StepId: "extra",
	}))
	require.NoError(t, b.say("one", "extra", completed))
	require.Equal(t, ready, b.step("one", "needed").GetStatus())
	require.NoError(t, b.say("one", "needed", completed))
	require.NoError(t, complete("one"))

	// Cancelled is not completed either.
	b.create("two", optional(in("extra")), in("needed", "extra"))
	require.NoError(t, b.say("two", "extra", cancelled))
	require.Equal(t, pending, b.step("two", "needed").GetStatus())
}
