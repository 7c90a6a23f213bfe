package board

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// acks returns the next acknowledgements that the worker gets, and the runs that it is told to
// stop until then.
func (p *pair) acks(t testing.TB) (acks []*boardv1.ReportAck, stopped []string) {
	t.Helper()
	for len(acks) == 0 {
		m := p.next(t)
		acks = append(acks, m.GetAcks()...)
		stopped = append(stopped, m.GetCancelRunIds()...)
	}
	return acks, stopped
}

// assigned returns the next assignment of a worker.
func (p *pair) assigned(t testing.TB) *boardv1.StepAssignment {
	t.Helper()
	for {
		if m := p.next(t); len(m.GetAssigned()) > 0 {
			return m.GetAssigned()[0]
		}
	}
}

// told waits until the worker is told to stop a run.
func (p *pair) told(t testing.TB, runID string) {
	t.Helper()
	for {
		for _, id := range p.next(t).GetCancelRunIds() {
			if id == runID {
				return
			}
		}
	}
}

// A report whose content is refused ends its step as failed with that reason, whatever the kind
// of the run, so that nobody executes the step again and again (SPEC B15.1).
func TestB15_ARefusedReportFailsItsStep(t *testing.T) {
	long := strings.Repeat("x", fault.MaxFreeTextBytes+1)
	nul := "a\x00b"
	for name, c := range map[string]struct {
		report *boardv1.StepReport
		reason string
	}{
		"a NUL": {
			&boardv1.StepReport{Status: model.StepCompleted, ResultSummary: &nul},
			"invalid_argument: result_summary has a NUL",
		},
		"a long summary": {
			&boardv1.StepReport{Status: model.StepCompleted, ResultSummary: &long},
			"limit_exceeded: result_summary has 16385 bytes",
		},
		"a long reason": {
			&boardv1.StepReport{Status: model.StepFailed, Reason: long},
			"limit_exceeded: reason has 16385 bytes",
		},
		"a long artifact": {
			&boardv1.StepReport{Status: model.StepCompleted, ArtifactIds: []string{strings.Repeat("é", 257)}},
			"limit_exceeded: artifact_ids[0] has 257 chars",
		},
		"an empty artifact": {
			&boardv1.StepReport{Status: model.StepCompleted, ArtifactIds: []string{"a", ""}},
			"invalid_argument: artifact_ids[1] is required",
		},
		"many artifacts": {
			&boardv1.StepReport{Status: model.StepCompleted, ArtifactIds: make([]string, 201)},
			"limit_exceeded: artifact_ids has 201 entries",
		},
		"a long remark": {
			&boardv1.StepReport{Status: model.StepCompleted, WorkerResult: long},
			"limit_exceeded: worker_result has 16385 bytes",
		},
		"progress": {
			&boardv1.StepReport{Status: model.StepRunning, ResultSummary: &nul},
			"invalid_argument: result_summary has a NUL",
		},
		"no such status": {&boardv1.StepReport{Status: 99}, "invalid_argument: status \"99\" must be"},
		"pending": {
			&boardv1.StepReport{Status: model.StepPending},
			"must be running, blocked, completed, failed or cancelled",
		},
		"ready": {
			&boardv1.StepReport{Status: model.StepReady},
			"must be running, blocked, completed, failed or cancelled",
		},
		"nothing": {&boardv1.StepReport{}, "invalid_argument: a report has the status"},
	} {
		for _, kind := range []string{"standing", "dispatched", "finished"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				if name == "nothing" && kind == "finished" {
					return // that ends a run, and is no refused report
				}
				r := newRig(t)
				r.create("one", in("a"), in("b"))
				w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1})
				if kind == "standing" {
					r.open("one", 1, "a")
					w.in <- &boardv1.ConnectRequest{Want: 1}
				} else {
					must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
						SessionId: owner, BoardId: "one",
					}))(t)
				}
				runID := w.assigned(t).GetRun().GetRunId()
				rep := &boardv1.StepReport{
					RunId: runID, Status: c.report.GetStatus(), ResultSummary: c.report.ResultSummary,
					Reason: c.report.GetReason(), ArtifactIds: c.report.GetArtifactIds(),
					WorkerResult: c.report.GetWorkerResult(), Finished: kind == "finished",
				}
				w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{rep}}
				acks, _ := w.acks(t)
				require.NotEmpty(t, acks[0].GetError())
				s := r.step("one", "a")
				require.Equal(t, model.StepFailed, s.GetStatus())
				require.Contains(t, s.GetReason(), "the report of the worker was refused: "+acks[0].GetError()+": ")
				require.Contains(t, s.GetReason(), c.reason)
				require.Equal(t, s.GetReason(), s.GetResultSummary())
				require.Empty(t, s.GetArtifactIds())
				run := must.Value(r.service.GetWorkerRun(r.owner(), &boardv1.GetWorkerRunRequest{
					SessionId: owner, BoardId: "one", RunId: runID,
				}))(t)
				require.Equal(t, boardv1.RunStatus_RUN_STATUS_FINISHED, run.GetRun().GetStatus())
				// The worker has room again, and what it says of the run later changes nothing.
				n := len(r.events())
				w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{rep, stepDone(runID, "all the same")}}
				acks, _ = w.acks(t)
				require.Len(t, acks, 2)
				require.NotEmpty(t, acks[0].GetError())
				require.Equal(t, "run_stale", acks[1].GetError())
				require.Len(t, r.events(), n)
				must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
					SessionId: owner, BoardId: "one",
				}))(t)
				require.Equal(t, "b", w.assigned(t).GetStep().GetStepId())
			})
		}
	}
}

// What is accepted at its limit is stored unchanged, beside a refused report in the same message.
func TestB15_LimitsOfReports(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b"))
	r.open("one", 2)
	w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 2})
	w.in <- &boardv1.ConnectRequest{Want: 2}
	runs := w.next(t).GetAssigned()
	require.Len(t, runs, 2)
	artifacts := make([]string, 200)
	for i := range artifacts {
		artifacts[i] = strings.Repeat("é", 256)
	}
	at, over := strings.Repeat("x", fault.MaxFreeTextBytes), strings.Repeat("x", fault.MaxFreeTextBytes+1)
	w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{
		{RunId: runs[0].GetRun().GetRunId(), Status: model.StepCompleted, ResultSummary: &over},
		{
			RunId: runs[1].GetRun().GetRunId(), Status: model.StepCompleted, ResultSummary: &at, ArtifactIds: artifacts,
			WorkerResult: at, Reason: at, Finished: true,
		},
	}}
	acks, _ := w.acks(t)
	require.Equal(t, []string{"limit_exceeded", ""}, []string{acks[0].GetError(), acks[1].GetError()})
	require.Equal(t, model.StepFailed, r.step("one", "a").GetStatus())
	require.Equal(t, at, r.step("one", "b").GetResultSummary())
	require.Equal(t, artifacts, r.step("one", "b").GetArtifactIds())
}

// A run of a standing dispatch that renews its lease again and again is stopped all the same, and its
// worker is told (SPEC B15.3).
func TestB15_AStandingDispatchHasADeadlineForEachStep(t *testing.T) {
	for name, c := range map[string]struct {
		timeout *durationpb.Duration
		want    time.Duration
	}{
		"default": {nil, time.Hour}, "least": {durationpb.New(time.Second), time.Second},
		"most": {durationpb.New(24 * time.Hour), 24 * time.Hour},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t)
				r.create("one", in("a"))
				resp := must.Value(r.service.OpenStandingDispatch(r.owner(), &boardv1.OpenStandingDispatchRequest{
					SessionId: owner, BoardId: "one", StepTimeout: c.timeout,
				}))(t)
				require.Equal(t, c.want, resp.GetDispatch().GetStepTimeout().AsDuration())
				list := must.Value(r.service.ListStandingDispatches(r.owner(), &boardv1.ListStandingDispatchesRequest{
					SessionId: owner, BoardId: "one",
				}))(t)
				require.Equal(t, c.want, list.GetDispatches()[0].GetStepTimeout().AsDuration())
				w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1})
				w.in <- &boardv1.ConnectRequest{Want: 1}
				a := w.assigned(t)
				end := r.clk.Now().Add(c.want)
				require.True(t, a.GetRun().GetDeadlineAt().AsTime().Equal(end))
				if restart {
					w.cancel()
					r.restart()
					w = r.connect(&boardv1.BoardWorkerHello{
						WorkerId: "w1", Capacity: 1, RunIds: []string{a.GetRun().GetRunId()},
					})
				}
				for r.clk.Now().Add(time.Minute).Before(end) {
					r.clk.Advance(time.Minute)
					_, ok := r.service.leases.Renew("acme", a.GetRun().GetRunId())
					require.True(t, ok)
				}
				r.clk.Advance(end.Sub(r.clk.Now()) - time.Millisecond)
				r.service.leases.Settle()
				require.Equal(t, model.StepClaimed, r.step("one", "a").GetStatus())
				r.clk.Advance(time.Millisecond)
				r.service.leases.Settle()
				require.Equal(t, model.StepFailed, r.step("one", "a").GetStatus())
				require.Equal(t, "worker_timeout", r.step("one", "a").GetReason())
				w.told(t, a.GetRun().GetRunId())
				run := must.Value(r.service.GetWorkerRun(r.owner(), &boardv1.GetWorkerRunRequest{
					SessionId: owner, BoardId: "one", RunId: a.GetRun().GetRunId(),
				}))(t)
				require.Equal(t, boardv1.RunStatus_RUN_STATUS_TIMED_OUT, run.GetRun().GetStatus())
				require.Equal(t, boardv1.RunEndReason_RUN_END_REASON_WORKER_TIMEOUT, run.GetRun().GetEndReason())
			})
		}
	}
	r := newRig(t)
	r.create("one", in("a"))
	for timeout, reason := range map[time.Duration]fault.Reason{time.Second - 1: fault.InvalidArgument, 24*time.Hour +
		1: fault.LimitExceeded, -1: fault.LimitExceeded} {
		_, err := r.service.OpenStandingDispatch(r.owner(), &boardv1.OpenStandingDispatchRequest{
			SessionId: owner, BoardId: "one", StepTimeout: durationpb.New(timeout),
		})
		require.ErrorIs(t, err, reason, timeout)
		require.ErrorContains(t, err, "step_timeout")
	}
}

// A lease is never said to expire after the deadline of its run, at which the run ends however often it renews.
func TestB15_ALeaseDoesNotOutlastItsRun(t *testing.T) {
	for _, standing := range []bool{true, false} {
		r := newRig(t)
		r.create("one", in("a"))
		limit := DefaultLeaseTerm + time.Minute
		w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1})
		if standing {
			must.Value(r.service.OpenStandingDispatch(r.owner(), &boardv1.OpenStandingDispatchRequest{
				SessionId: owner, BoardId: "one", StepTimeout: durationpb.New(limit),
			}))(t)
			w.in <- &boardv1.ConnectRequest{Want: 1}
		} else {
			must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
				SessionId: owner, BoardId: "one", Timeout: durationpb.New(limit),
			}))(t)
		}
		a := w.assigned(t)
		require.Equal(t, epoch.Add(DefaultLeaseTerm), a.GetStep().GetLeaseExpiresAt().AsTime())
		renew := func() time.Time {
			resp, err := r.service.RenewWorkerRun(r.as("w1", a.GetRun().GetRunId()), &boardv1.RenewWorkerRunRequest{
				SessionId: owner, BoardId: "one",
			})
			require.NoError(t, err)
			return resp.GetLeaseExpiresAt().AsTime()
		}
		require.Equal(t, epoch.Add(DefaultLeaseTerm), renew())
		r.clk.Advance(2 * time.Minute)
		require.Equal(t, epoch.Add(limit), renew())
		require.Equal(t, epoch.Add(limit), r.step("one", "a").GetLeaseExpiresAt().AsTime())
		for range 2 { // it starts, and says that it is still running
			require.NoError(t, r.report("one", "w1", a.GetRun().GetRunId(), "a", model.StepRunning))
			all := r.events()
			said, ok := all[len(all)-1].Payload.(interface{ GetLeaseExpiresAt() *timestamppb.Timestamp })
			require.True(t, ok)
			require.Equal(t, epoch.Add(limit), said.GetLeaseExpiresAt().AsTime())
		}
		r.clk.Advance(limit - 2*time.Minute)
		require.Equal(t, "worker_timeout", r.step("one", "a").GetReason())
	}
	r := newRig(t)
	r.create("one", in("a"))
	must.Value(r.service.OpenStandingDispatch(r.owner(), &boardv1.OpenStandingDispatchRequest{
		SessionId: owner, BoardId: "one", StepTimeout: durationpb.New(time.Second),
	}))(t)
	w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1})
	w.in <- &boardv1.ConnectRequest{Want: 1}
	require.Equal(t, epoch.Add(time.Second), w.assigned(t).GetStep().GetLeaseExpiresAt().AsTime())
	claimed, ok := journal.Find[*boardv1.TaskStepClaimed](r.events())
	require.True(t, ok)
	require.Equal(t, epoch.Add(time.Second), claimed.GetLeaseExpiresAt().AsTime())
}

// A run whose step the orchestrator takes, or whose lease is over, or that is cancelled, is
// stopped at once, without a heartbeat; its worker has room again (SPEC B15.4).
func TestB15_AWorkerIsToldAtOnce(t *testing.T) {
	for _, standing := range []bool{true, false} {
		for name, take := range map[string]func(r *rig, runID string){
			"completed": func(r *rig, _ string) { require.NoError(r.t, r.say("one", "a", model.StepCompleted)) },
			"failed":    func(r *rig, _ string) { require.NoError(r.t, r.say("one", "a", model.StepFailed)) },
			"blocked":   func(r *rig, _ string) { require.NoError(r.t, r.say("one", "a", model.StepBlocked)) },
			"cancelled": func(r *rig, runID string) {
				must.Value(r.service.CancelWorkerRun(r.owner(), &boardv1.CancelWorkerRunRequest{
					SessionId: owner, BoardId: "one", RunId: runID,
				}))(r.t)
			},
			"lease": func(r *rig, _ string) {
				r.clk.Advance(DefaultLeaseTerm)
				r.service.leases.Settle()
			},
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t)
				r.create("one", in("a"), in("b", "a"))
				w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1})
				if standing {
					r.open("one", 1, "a")
					w.in <- &boardv1.ConnectRequest{Want: 1}
				} else {
					must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
						SessionId: owner, BoardId: "one",
					}))(t)
				}
				runID := w.assigned(t).GetRun().GetRunId()
				w.in <- &boardv1.ConnectRequest{
					Reports: []*boardv1.StepReport{{RunId: runID, Status: model.StepRunning}},
				}
				acks, _ := w.acks(t)
				require.Empty(t, acks[0].GetError())
				take(r, runID)
				w.told(t, runID)
				run := must.Value(r.service.GetWorkerRun(r.owner(), &boardv1.GetWorkerRunRequest{
					SessionId: owner, BoardId: "one", RunId: runID,
				}))(t)
				want := boardv1.RunStatus_RUN_STATUS_CANCELLED
				if name == "lease" {
					want = boardv1.RunStatus_RUN_STATUS_LOST
				}
				require.Equal(t, want, run.GetRun().GetStatus())
				before := r.step("one", "a")
				w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{stepDone(runID, "late")}}
				acks, _ = w.acks(t)
				require.Contains(t, []string{"run_stale", "lease_expired"}, acks[0].GetError())
				require.Equal(t, before.GetStatus(), r.step("one", "a").GetStatus())
				require.NotEqual(t, "late", r.step("one", "a").GetResultSummary())
				workers := must.Value(r.service.ListWorkers(r.owner(), &boardv1.ListWorkersRequest{}))(t)
				require.Empty(t, workers.GetWorkers()[0].GetRunIds())
			})
		}
	}
}

// A step that is open again has neither the result nor the artifacts of before, and a completion
// without a result does not inherit them (SPEC B15.5).
func TestB15_AReopenedStepBeginsAnew(t *testing.T) {
	said, artifacts := "half of it", []string{"core"}
	for name, end := range map[string]model.StepStatus{
		"failed": model.StepFailed, "blocked": model.StepBlocked,
		"lost": 0,
	} {
		for _, how := range []string{"UpdateStep", "UpdateBoard"} {
			t.Run(name+" "+how, func(t *testing.T) {
				r := newRig(t)
				r.create("one", in("a"))
				runID := r.held("one", "a")
				report := &boardv1.UpdateStepRequest{
					SessionId: owner, BoardId: "one", StepId: "a", Status: end,
					ResultSummary: &said, ArtifactIds: artifacts, Reason: "no disk",
				}
				if end == 0 {
					report.Status, report.Reason = model.StepRunning, ""
				}
				_, err := r.service.UpdateStep(r.as("w-a", runID), report)
				require.NoError(t, err)
				require.Equal(t, said, r.step("one", "a").GetResultSummary())
				reason := "try again"
				switch {
				case end == 0:
					r.clk.Advance(DefaultLeaseTerm)
					reason = ""
				case how == "UpdateStep":
					_, err = r.service.UpdateStep(r.owner(), &boardv1.UpdateStepRequest{
						SessionId: owner, BoardId: "one", StepId: "a", Status: model.StepPending, Reason: reason,
					})
				default:
					err = r.update("one", &boardv1.Operation{Op: model.OpReopenStep, StepId: "a", Reason: reason})
				}
				require.NoError(t, err)
				s := r.step("one", "a")
				require.Equal(t, model.StepReady, s.GetStatus())
				require.Empty(t, s.GetResultSummary())
				require.Empty(t, s.GetArtifactIds())
				require.Equal(t, reason, s.GetReason())
				runID = r.run("one", "w2")
				require.NoError(t, r.claim("one", "w2", runID, "a"))
				require.NoError(t, r.report("one", "w2", runID, "a", model.StepCompleted))
				s = r.step("one", "a")
				require.Empty(t, s.GetResultSummary()+s.GetReason())
				require.Empty(t, s.GetArtifactIds())
			})
		}
	}
}
