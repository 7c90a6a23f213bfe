package board

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
	"quartet/services/board/wal"
)

// forge returns a WAL of events with right numbers and hashes.
func forge(t *testing.T, name string, events []*journal.Event) []byte {
	t.Helper()
	var out []byte
	hash := wal.FirstHash(owner, name)
	for i, ev := range events {
		var err error
		out, hash, err = wal.AppendLine(out, hash, int64(i+1), ev)
		require.NoError(t, err)
	}
	return out
}

// A line that no rule writes after the lines before it is found, even if its hash is right
// (SPEC B1.2).
func TestB1_ALineThatCannotFollowIsFound(t *testing.T) {
	r := newRig(t)
	// a is completed, b running, c claimed, d ready, e pending on b, f failed, h pending on e.
	r.create("one", in("a"), in("b"), in("c"), in("d"), in("e", "b"), in("f"), in("g", "a"), in("h", "e"))
	require.NoError(t, r.say("one", "a", model.StepCompleted))
	runB := r.held("one", "b")
	require.NoError(t, r.report("one", "w-b", runB, "b", model.StepRunning))
	runC := r.held("one", "c")
	require.NoError(t, r.say("one", "f", model.StepFailed))
	var base []*journal.Event
	for _, ev := range r.events() {
		if model.InWAL(ev) {
			base = append(base, ev)
		}
	}
	must.Value(wal.Replay(bytes.NewReader(forge(t, "one-wal", base))))(t)
	require.Equal(t, string(r.wal("one-wal")), string(forge(t, "one-wal", base)))

	line := func(kind, step, run string, payload proto.Message) *journal.Event {
		return &journal.Event{
			ID: "ev_forged", Type: kind, SessionID: owner, TaskID: "one", StepID: step,
			ActorRunID: run, CreatedAt: epoch, Payload: payload,
		}
	}
	updated := func(ops ...*boardv1.Operation) *journal.Event {
		return line("task_updated", "", "", &boardv1.TaskUpdated{Operations: ops})
	}
	blocked := line("task_blocked", "", "", &boardv1.TaskBlocked{})
	for name, c := range map[string]struct {
		lines []*journal.Event
		says  string
	}{
		"completed with open steps": {
			[]*journal.Event{line("task_completed", "", "", &boardv1.TaskCompleted{})},
			"steps are not completed: b, c, d, e, f, g, h",
		},
		"failed with open steps": {
			[]*journal.Event{line("task_failed", "", "", &boardv1.TaskFailed{})},
			"steps have not ended",
		},
		"cancelled with open steps": {
			[]*journal.Event{line("task_cancelled", "", "", &boardv1.TaskCancelled{})},
			"steps have not ended",
		},
		"a claim on a blocked board": {
			[]*journal.Event{
				blocked, line("task_step_claimed", "d", "run_1", &boardv1.TaskStepClaimed{ClaimedByRunId: "run_1"}),
			},
			"the board is blocked",
		},
		"a claim of a pending step": {
			[]*journal.Event{
				line("task_step_claimed", "e", "run_1", &boardv1.TaskStepClaimed{ClaimedByRunId: "run_1"}),
			},
			"which is pending",
		},
		"a claim of a held step": {
			[]*journal.Event{
				line("task_step_claimed", "b", "run_1", &boardv1.TaskStepClaimed{ClaimedByRunId: "run_1"}),
			},
			"which is running",
		},
		"a new step in a cycle": {[]*journal.Event{updated(
			&boardv1.Operation{Op: model.OpAddStep, Step: in("x", "e")}, &boardv1.Operation{
				Op: model.OpAddDependency, StepId: "b", DependsOnStepId: "x",
			},
		)}, "the dependencies run in a circle: "},
		"a cycle of old steps": {
			[]*journal.Event{updated(&boardv1.Operation{Op: model.OpAddDependency, StepId: "b", DependsOnStepId: "e"})},
			"the dependencies run in a circle: b, e, b",
		},
		"a step on itself": {
			[]*journal.Event{
				updated(&boardv1.Operation{Op: model.OpUpdateStep, StepId: "d", Fields: &boardv1.StepFields{
					DependsOnStepIds: &boardv1.StepList{StepIds: []string{"d"}},
				}}),
			}, "circle: d, d",
		},
		"a deleted dependency": {
			[]*journal.Event{updated(&boardv1.Operation{Op: model.OpCancelStep, StepId: "e"},
				&boardv1.Operation{Op: model.OpDeleteStep, StepId: "e"})}, "on which step h depends",
		},
		"a cancelled running step": {
			[]*journal.Event{updated(&boardv1.Operation{Op: model.OpCancelStep, StepId: "b"},
				&boardv1.Operation{Op: model.OpDeleteStep, StepId: "b"})},
			"change step b, which is running, to cancelled",
		},
		"a reopened completed step": {
			[]*journal.Event{updated(&boardv1.Operation{Op: model.OpReopenStep, StepId: "a"},
				&boardv1.Operation{Op: model.OpDeleteStep, StepId: "a"})},
			"change step a, which is completed, to pending",
		},
		"a deleted running step": {
			[]*journal.Event{updated(&boardv1.Operation{Op: model.OpDeleteStep, StepId: "b"})},
			"it deletes step b, which is running",
		},
		"a deleted completed step": {
			[]*journal.Event{updated(&boardv1.Operation{Op: model.OpDeleteStep, StepId: "a"})},
			"it deletes step a, which is completed",
		},
		"an unknown dependency": {
			[]*journal.Event{
				updated(&boardv1.Operation{Op: model.OpAddDependency, StepId: "d", DependsOnStepId: "zz"}),
			},
			"does not exist",
		},
		"a reopened held step": {
			[]*journal.Event{line("task_step_reopened", "b", "", &boardv1.TaskStepReopened{})}, "which is running",
		},
		"a reopened ready step": {
			[]*journal.Event{line("task_step_reopened", "d", "", &boardv1.TaskStepReopened{})}, "which is ready",
		},
		"a lease of a ready step": {
			[]*journal.Event{line("task_step_lease_expired", "d", "", &boardv1.TaskStepLeaseExpired{})},
			"which is ready",
		},
		"a lease of a failed step": {
			[]*journal.Event{line("task_step_lease_expired", "f", "", &boardv1.TaskStepLeaseExpired{})},
			"which is failed",
		},
		"a lease of another run": {
			[]*journal.Event{
				line("task_step_lease_expired", "b", "", &boardv1.TaskStepLeaseExpired{ClaimedByRunId: runC}),
			},
			"run " + runB + " holds it",
		},
		"a start by another run": {
			[]*journal.Event{line("task_step_started", "c", runB, &boardv1.TaskStepStarted{})}, "run " + runC +
				" holds it",
		},
		"a start of a running step": {
			[]*journal.Event{line("task_step_started", "b", runB, &boardv1.TaskStepStarted{})}, "which is running",
		},
		"progress of a claimed step": {
			[]*journal.Event{line("task_step_updated", "c", runC, &boardv1.TaskStepUpdated{})}, "which is claimed",
		},
		"progress by another run": {
			[]*journal.Event{line("task_step_updated", "b", runC, &boardv1.TaskStepUpdated{})}, "run " + runB +
				" holds it",
		},
		"ready although it is held": {
			[]*journal.Event{line("task_step_ready", "b", "", &boardv1.TaskStepReady{})},
			"which is running",
		},
		"ready before its dependencies": {
			[]*journal.Event{line("task_step_ready", "e", "", &boardv1.TaskStepReady{})},
			"not completed",
		},
		"running twice": {
			[]*journal.Event{line("task_running", "", "", &boardv1.TaskRunning{})},
			"cannot become running",
		},
		"another result": {
			[]*journal.Event{line("task_step_completed", "a", "", &boardv1.TaskStepCompleted{})}, "which is completed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := forge(t, "one-wal", append(base[:len(base):len(base)], c.lines...))
			got, err := wal.Replay(bytes.NewReader(log))
			require.ErrorIs(t, err, fault.Storage)
			require.ErrorContains(t, err, c.says)
			require.EqualValues(t, len(base)+len(c.lines)-1, got.Lines)
			require.NotNil(t, got.Board)
		})
	}
	// A board whose first line has a cycle, and one that runs although no step can.
	for says, first := range map[string]*boardv1.TaskCreated{
		"the dependencies run in a circle": {WalName: "one-wal", Steps: []*boardv1.StepInput{
			in("a", "b"), in("b", "a"),
		}},
		"no step is ready": {WalName: "one-wal", Steps: []*boardv1.StepInput{in("a")}},
	} {
		lines := []*journal.Event{
			line("task_created", "", "", first),
			line("task_running", "", "", &boardv1.TaskRunning{}),
		}
		must.Fail(wal.Replay(bytes.NewReader(forge(t, "one-wal", lines))))(t, says)
	}
}

// Each line names who acted, with the credential's name and role (SPEC B1.3).
func TestB1_LinesNamePrincipalAndRole(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"))
	runID := r.held("one", "a")
	require.NoError(t, r.report("one", "w-a", runID, "a", model.StepRunning))
	require.NoError(t,
		r.update("one", &boardv1.Operation{Op: model.OpUpdateTask, Task: &boardv1.UpdateTask{
			Title: proto.String("T"),
		}}))
	must.Value(r.service.UpdateBoard(r.operator(), &boardv1.UpdateBoardRequest{
		SessionId: owner, BoardId: "one", Operations: []*boardv1.Operation{{Op: model.OpBlockBoard}},
	}))(t)
	r.clk.Advance(DefaultLeaseTerm)
	r.service.leases.Settle()
	who := map[string]string{}
	for line := range strings.Lines(string(r.wal("one-wal"))) {
		var ev map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &ev))
		require.Contains(t, ev, "principal")
		require.Contains(t, ev, "role")
		who[ev["event_type"].(string)] = ev["principal"].(string) + " as " + ev["role"].(string)
	}
	require.Equal(t, "worker/w-a as worker", who["task_step_started"])
	require.Contains(t, who["task_updated"], " as operator")
	require.Contains(t, who["task_created"], " as agent")
	require.Contains(t, who["task_step_lease_expired"], " as service")
}
