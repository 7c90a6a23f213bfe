package board

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/services/board/model"
	"quartet/services/board/rules"
)

func stepDone(runID, what string) *boardv1.StepReport {
	return &boardv1.StepReport{RunId: runID, Status: model.StepCompleted, ResultSummary: &what}
}

func (r *rig) open(board string, parallel int32, allowed ...string) string {
	r.t.Helper()
	req := &boardv1.OpenStandingDispatchRequest{SessionId: owner, BoardId: board, MaxParallel: parallel}
	if allowed != nil {
		req.AllowedStepIds = &boardv1.StepList{StepIds: allowed}
	}
	return must.Value(r.service.OpenStandingDispatch(r.owner(), req))(r.t).GetDispatch().GetDispatchId()
}

func TestB10_DispatchRunsOneStep(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b", "a"))
	_, err := r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{SessionId: owner, BoardId: "one"})
	require.ErrorIs(t, err, fault.WorkerPoolBusy)
	w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1})
	req := &boardv1.DispatchWorkerRequest{SessionId: owner, BoardId: "one", RequestId: "d1", Instruction: "go"}
	resp := must.Value(r.service.DispatchWorker(r.owner(), req))(t)
	require.True(t, resp.GetPending())
	a := w.next(t).GetAssigned()[0]
	require.Equal(t, "a", a.GetStep().GetStepId())
	require.Equal(t, "go", a.GetRun().GetInstruction())
	for id, reason := range map[string]fault.Reason{
		"": fault.WorkerPoolBusy, "w1": fault.WorkerBusy,
		"w9": fault.NotFound,
	} {
		_, err = r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
			SessionId: owner, BoardId: "one", WorkerId: id,
		})
		require.ErrorIs(t, err, reason)
	}
	again := must.Value(r.service.DispatchWorker(r.owner(), req))(t)
	require.Equal(t, resp.GetRun().GetRunId(), again.GetRun().GetRunId())
	rep := stepDone(a.GetRun().GetRunId(), "fine")
	rep.Finished, rep.WorkerResult = true, "I did it"
	w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{rep}}
	require.Empty(t, w.next(t).GetAcks()[0].GetError())
	got := must.Value(r.service.GetWorkerRun(r.owner(), &boardv1.GetWorkerRunRequest{
		SessionId: owner, BoardId: "one", RunId: a.GetRun().GetRunId(), Wait: durationpb.New(time.Second),
	}))(t)
	require.False(t, got.GetPending())
	run := got.GetRun()
	require.Equal(t, "a", run.GetClaimedStepId())
	require.Equal(t, model.StepCompleted, run.GetStepStatus())
	require.Equal(t, "fine", run.GetStepResultSummary())
	require.Equal(t, "I did it", run.GetWorkerResult())
	require.Equal(t, "fine", r.step("one", "a").GetResultSummary())
	// Nothing to do is no failure.
	resp = must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
		SessionId: owner, BoardId: "one", AllowedStepIds: &boardv1.StepList{StepIds: []string{"a", "a"}},
		Wait: durationpb.New(30 * time.Second),
	}))(t)
	require.True(t, resp.GetRun().GetNoStepClaimed())
	require.Equal(t, boardv1.RunStatus_RUN_STATUS_FINISHED, resp.GetRun().GetStatus())
	must.Refuse(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
		SessionId: owner, BoardId: "one", AllowedStepIds: &boardv1.StepList{},
	}))(t, fault.InvalidArgument)
}

func TestB11_AWorkerThatChooses(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b"), in("c", "a"), &boardv1.StepInput{StepId: "d", Title: "D", WorkerPoolId: "other"})
	w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1, ChoosesSteps: true})
	must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
		SessionId: owner, BoardId: "one", AllowedStepIds: &boardv1.StepList{StepIds: []string{"b", "c"}},
	}))(t)
	a := w.next(t).GetAssigned()[0]
	require.Nil(t, a.GetStep())
	runID := a.GetRun().GetRunId()
	require.Equal(t, "token-of-"+runID, a.GetRunToken())
	ctx := r.as("w1", runID)
	q := must.Value(r.service.QuerySteps(ctx, &boardv1.QueryStepsRequest{SessionId: owner, BoardId: "one"}))(t)
	require.Len(t, q.GetSteps(), 1)
	require.Equal(t, "b", q.GetSteps()[0].GetStepId())
	q = must.Value(r.service.QuerySteps(ctx, &boardv1.QueryStepsRequest{
		SessionId: owner, BoardId: "one", StepIds: []string{"a"},
	}))(t) // c depends on it
	require.Len(t, q.GetSteps(), 1)
	must.Refuse(r.service.QuerySteps(ctx, &boardv1.QueryStepsRequest{
		SessionId: owner, BoardId: "one", StepIds: []string{"d"},
	}))(t, fault.PermissionDenied)
	require.ErrorIs(t, r.claim("one", "w1", runID, "a"), fault.PermissionDenied)
	require.ErrorIs(t, r.claim("one", "w1", runID, "c"), fault.StepState)
	require.ErrorIs(t, r.claim("one", "w1", runID, "d"), fault.PermissionDenied)
	require.ErrorIs(t, r.claim("one", "w1", runID, "zz"), fault.NotFound)
	r.create("two", in("b"))
	require.ErrorIs(t, r.claim("two", "w1", runID, "b"), fault.PermissionDenied)
	require.NoError(t, r.claim("one", "w1", runID, "b"))
	require.ErrorIs(t, r.claim("one", "w1", runID, "b"), fault.StepAlreadyClaimedByRun)
	require.ErrorIs(t, r.claim("one", "w2", r.run("one", "w2"), "b"), fault.StepAlreadyClaimed)
	fin := must.Value(r.service.FinishWorkerRun(ctx, &boardv1.FinishWorkerRunRequest{
		SessionId: owner, BoardId: "one", WorkerResult: "gave up",
	}))(t)
	require.Equal(t, model.StepFailed, fin.GetRun().GetStepStatus())
	require.Equal(t, rules.WhyFinished, r.step("one", "b").GetReason())
	require.Equal(t, rules.WhyFinished, r.step("one", "b").GetResultSummary())
}

func TestS2_418_ACancelledRunAndOneThatTookTooLong(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b"))
	w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 2})
	must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{SessionId: owner, BoardId: "one"}))(t)
	a := w.next(t).GetAssigned()[0].GetRun().GetRunId()
	must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
		SessionId: owner, BoardId: "one", Timeout: durationpb.New(time.Minute),
	}))(t)
	b := w.next(t).GetAssigned()[0].GetRun().GetRunId()
	got := must.Value(r.service.CancelWorkerRun(r.operator(), &boardv1.CancelWorkerRunRequest{
		SessionId: owner, BoardId: "one", RunId: a,
	}))(t)
	require.Equal(t, boardv1.RunStatus_RUN_STATUS_CANCELLED, got.GetRun().GetStatus())
	require.Equal(t, "worker_cancelled", r.step("one", "a").GetReason())
	must.Value(r.service.CancelWorkerRun(r.operator(), &boardv1.CancelWorkerRunRequest{
		SessionId: owner, BoardId: "one", RunId: a,
	}))(t)
	w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{stepDone(a, "late")}}
	for ack := (*boardv1.ReportAck)(nil); ack == nil; {
		if acks := w.next(t).GetAcks(); len(acks) > 0 {
			ack = acks[0]
			require.Equal(t, "run_stale", ack.GetError())
		}
	}
	r.clk.Advance(time.Minute)
	require.Equal(t, "worker_timeout", r.step("one", "b").GetReason())
	run := must.Value(r.service.GetWorkerRun(r.owner(), &boardv1.GetWorkerRunRequest{
		SessionId: owner, BoardId: "one", RunId: b,
	}))(t)
	require.Equal(t, boardv1.RunStatus_RUN_STATUS_TIMED_OUT, run.GetRun().GetStatus())
}

// TestB11_EveryStepOnce lets several workers finish boards over streams: every
// step is done once, after all it depends on.
func TestB11_EveryStepOnce(t *testing.T) {
	r := newRig(t)
	const boards, steps, workers = 3, 300, 4
	for b := range boards {
		var all []*boardv1.StepInput
		for i := range steps {
			s := in(fmt.Sprint("s", i))
			for _, d := range []int{i / 2, i - 7} {
				if i > 0 && d >= 0 && (len(s.DependsOnStepIds) == 0 || s.DependsOnStepIds[0] != fmt.Sprint("s", d)) {
					s.DependsOnStepIds = append(s.DependsOnStepIds, fmt.Sprint("s", d))
				}
			}
			if i == 0 {
				s.DependsOnStepIds = nil
			}
			all = append(all, s)
		}
		for i, s := range all { // no self-dependency for i/2 == i
			if i > 0 && s.DependsOnStepIds[0] == s.GetStepId() {
				s.DependsOnStepIds = s.DependsOnStepIds[1:]
			}
		}
		r.create(fmt.Sprint("b", b), all...)
		r.open(fmt.Sprint("b", b), 0)
	}
	var mu sync.Mutex
	seen := map[string]int{}
	left := boards * steps
	var working sync.WaitGroup
	for i := range workers {
		w := r.connect(&boardv1.BoardWorkerHello{WorkerId: fmt.Sprint("w", i), Capacity: 8})
		w.in <- &boardv1.ConnectRequest{Want: 8}
		working.Go(func() {
			for {
				mu.Lock()
				over := left == 0
				mu.Unlock()
				if over {
					return
				}
				select {
				case m := <-w.out:
					out := &boardv1.ConnectRequest{Want: int32(len(m.GetAssigned()))}
					mu.Lock()
					for _, a := range m.GetAssigned() {
						seen[a.GetRun().GetBoardId()+"/"+a.GetStep().GetStepId()]++
						for _, d := range a.GetDependencies() {
							if d.GetStatus() != model.StepCompleted || d.GetResultSummary() != "ok" {
								seen["wrong dependency"]++
							}
						}
						out.Reports = append(out.Reports, stepDone(a.GetRun().GetRunId(), "ok"))
					}
					for _, ack := range m.GetAcks() {
						if ack.GetError() != "" {
							seen[ack.GetError()]++
						}
						left--
					}
					mu.Unlock()
					if len(out.GetReports()) > 0 {
						w.in <- out
					}
				case <-time.After(10 * time.Millisecond):
				case <-w.ctx.Done():
					return
				}
			}
		})
	}
	working.Wait()
	require.Len(t, seen, boards*steps)
	for id, n := range seen {
		require.Equal(t, 1, n, id)
	}
	for b := range boards {
		require.True(t, r.get(fmt.Sprint("b", b)).GetDiagnostics().GetCompleteable())
	}
}

func TestB10_AStandingDispatch(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b"), in("c"), in("d"))
	dispatch := r.open("one", 2, "a", "c", "d")
	w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 8})
	w.in <- &boardv1.ConnectRequest{Want: 8}
	got := w.next(t).GetAssigned()
	require.Len(t, got, 2) // max_parallel
	require.Equal(t, []string{"a", "c"}, []string{got[0].GetStep().GetStepId(), got[1].GetStep().GetStepId()})
	w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{stepDone(got[0].GetRun().GetRunId(), "1")}}
	m := w.next(t)
	require.Empty(t, m.GetAcks()[0].GetError())
	require.Equal(t, "d", m.GetAssigned()[0].GetStep().GetStepId())
	// A report that is said again was stored before.
	w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{
		stepDone(got[0].GetRun().GetRunId(), "1"),
		stepDone("run_unknown", "x"),
	}}
	acks := w.next(t).GetAcks()
	require.Empty(t, acks[0].GetError())
	require.Equal(t, "run_stale", acks[1].GetError())
	must.Value(r.service.CloseStandingDispatch(r.owner(), &boardv1.CloseStandingDispatchRequest{
		SessionId: owner, BoardId: "one", DispatchId: dispatch,
	}))(t)
	w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{
		stepDone(got[1].GetRun().GetRunId(), "2"),
		stepDone(m.GetAssigned()[0].GetRun().GetRunId(), "3"),
	}}
	m = w.next(t)
	require.Len(t, m.GetAcks(), 2)
	require.Empty(t, m.GetAssigned())
	require.Equal(t, model.StepReady, r.step("one", "b").GetStatus())
	list := must.Value(r.service.ListStandingDispatches(r.owner(), &boardv1.ListStandingDispatchesRequest{
		SessionId: owner, BoardId: "one",
	}))(t)
	require.Empty(t, list.GetDispatches())
}

// Reports and claims that make more events than one write holds are written in several.
func TestB10_ABatchThatIsTooLargeIsWrittenInParts(t *testing.T) {
	r := newRig(t)
	const followers = 8000
	w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 10_000})
	for _, board := range []string{"one", "two"} {
		steps := []*boardv1.StepInput{in("root")}
		for i := range followers {
			steps = append(steps, in(fmt.Sprintf("step-%05d-%s", i, strings.Repeat("x", 100)), "root"))
		}
		r.create(board, steps...)
		r.open(board, 10_000)
	}
	w.in <- &boardv1.ConnectRequest{Want: 2}
	got := w.next(t).GetAssigned()
	require.Len(t, got, 2)
	w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{
		stepDone(got[0].GetRun().GetRunId(), "1"),
		stepDone(got[1].GetRun().GetRunId(), "2"),
	}}
	for acked := 0; acked < 2; {
		for _, ack := range w.next(t).GetAcks() {
			require.Empty(t, ack.GetError(), ack.GetMessage())
			acked++
		}
	}
	require.EqualValues(t, followers, r.get("one").GetCounts().GetReady())
	require.EqualValues(t, followers, r.get("two").GetCounts().GetReady())
	w.in <- &boardv1.ConnectRequest{Want: 10_000}
	for claimed := 0; claimed < 10_000; {
		claimed += len(w.next(t).GetAssigned())
	}
	require.EqualValues(t, 2*followers-10_000, r.get("one").GetCounts().GetReady()+r.get("two").GetCounts().GetReady())
}

// TestX12_AWorkerComesBack: what it was given and does not know of is given to
// it again; what is over is named.
func TestX12_AWorkerComesBack(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b"))
	r.open("one", 0)
	w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 2})
	w.in <- &boardv1.ConnectRequest{Want: 2}
	first := w.next(t).GetAssigned()
	require.Len(t, first, 2)
	w.cancel()
	r.restart()
	w = r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 2, RunIds: []string{
		first[0].GetRun().GetRunId(),
		"run_gone",
	}})
	m := w.next(t)
	require.Equal(t, []string{"run_gone"}, m.GetCancelRunIds())
	require.Len(t, m.GetAssigned(), 1)
	require.Equal(t, first[1].GetRun().GetRunId(), m.GetAssigned()[0].GetRun().GetRunId())
	require.Equal(t, first[1].GetStep().GetStepId(), m.GetAssigned()[0].GetStep().GetStepId())
	w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{
		stepDone(first[0].GetRun().GetRunId(), "x"),
		stepDone(first[1].GetRun().GetRunId(), "y"),
	}}
	acks := w.next(t).GetAcks()
	require.Empty(t, acks[0].GetError()+acks[1].GetError())
}

// TestARCH11_AStepCostsTheSameOnEveryBoard compares the lines that one step
// takes on a small board with those on a large one.
func TestARCH11_AStepCostsTheSameOnEveryBoard(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	r := newRig(t)
	size := func(board string, n int) int {
		var steps []*boardv1.StepInput
		for i := range n {
			steps = append(steps, in(fmt.Sprintf("s%05d", i)))
		}
		r.create(board, steps...)
		before := len(r.events())
		runID := r.run(board, "worker")
		require.NoError(t, r.claim(board, "worker", runID, ""))
		require.NoError(t, r.report(board, "worker", runID, "s00000", model.StepCompleted))
		require.Equal(t, []string{"worker_dispatched", "task_step_claimed", "task_step_completed"},
			planetest.Types(r.events()[before:]))
		lines := r.wal(board + "-wal")
		return len(lines) - len(lastLines(lines, 2))
	}
	small, large := 100, 10_000
	size("s", small)
	size("l", large)
	a, b := lastLines(r.wal("s-wal"), 2), lastLines(r.wal("l-wal"), 2)
	require.InDelta(t, len(a), len(b), 8) // wal_seq has more digits
}

func lastLines(wal []byte, n int) []byte {
	at := len(wal)
	for range n {
		at--
		for at > 0 && wal[at-1] != '\n' {
			at--
		}
	}
	return wal[at:]
}

// TestS2_186_TheLastWordOfALateRun: a run whose board has ended may still say
// what came of it; the board stays as it is.
func TestS2_186_TheLastWordOfALateRun(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"))
	runID := r.run("one", "w1")
	must.Value(r.service.CancelBoard(r.owner(), &boardv1.CancelBoardRequest{SessionId: owner, BoardId: "one"}))(t)
	lines := string(r.wal("one-wal"))
	got := must.Value(r.service.FinishWorkerRun(r.as("w1", runID), &boardv1.FinishWorkerRunRequest{
		SessionId: owner, BoardId: "one", WorkerResult: "too late",
	}))(t)
	require.Equal(t, "too late", got.GetRun().GetWorkerResult())
	require.Equal(t, boardv1.RunStatus_RUN_STATUS_CANCELLED, got.GetRun().GetStatus())
	must.Refuse(r.service.UpdateStep(r.as("w1", runID), &boardv1.UpdateStepRequest{
		SessionId: owner, BoardId: "one", StepId: "a", Status: model.StepCompleted,
	}))(t, fault.TaskTerminal)
	require.Equal(t, lines, string(r.wal("one-wal")))
}

// TestB10_ARunBeginsOnce: a run that a batch has twice, since its worker connected while it was dispatched, or that a
// report of the batch has ended, neither claims a second step nor ends again.
func TestB10_ARunBeginsOnce(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b"))
	k := model.Key{Namespace: "acme", ID: owner}
	for _, c := range []struct {
		name     string
		allowed  []string
		chooses  bool
		finished bool
		want     []string
		assigned int
	}{
		{"two ready steps", nil, false, false, []string{"TaskStepClaimed"}, 1},
		{"no step", []string{"b"}, false, false, []string{"WorkerRunEnded"}, 0},
		{"ended by its report", nil, false, true, []string{"WorkerRunEnded"}, 0},
		{"ended by its report, of a worker that chooses", nil, true, true, []string{"WorkerRunEnded"}, 0},
	} {
		if len(c.allowed) > 0 {
			require.NoError(t, r.claim("one", "w0", r.run("one", "w0"), "b"))
		}
		runID := r.run("one", "w1", c.allowed...)
		var types []string
		must.Value(r.service.do(r.owner(), change{
			method: "test", session: k, board: "one", actor: plane.System("acme"),
			decide: func(st *model.State, _ *board_, env journal.Env) ([]*journal.Event, error) {
				run := &boardv1.WorkerRun{RunId: runID}
				batch := rules.Batch{
					Namespace: "acme", WorkerID: "w1", ChoosesSteps: c.chooses, Begin: []*boardv1.WorkerRun{run, run},
					Room: 5, MintToken: func(string) string { return "token" },
				}
				if c.finished {
					batch.Reports = []*boardv1.StepReport{{RunId: runID, Finished: true}}
				}
				events, out := batch.Decide(st, env)
				for _, ev := range events {
					types = append(types, strings.TrimPrefix(fmt.Sprintf("%T", ev.Payload), "*boardv1."))
				}
				require.Len(t, out.Assigned, c.assigned, c.name)
				return nil, nil
			},
		}))(t)
		require.Equal(t, c.want, types, c.name)
	}
}
