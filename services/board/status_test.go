package board

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/board/model"
	"quartet/services/board/rules"
)

// stand brings step "x" of a new board to a status. It gives the run that
// holds it, or held it last.
func (r *rig) stand(board string, at model.StepStatus) string {
	r.t.Helper()
	if at == model.StepPending {
		r.create(board, in("dep"), in("x", "dep"))
		return ""
	}
	r.create(board, in("x"), in("other"))
	if at == model.StepReady {
		return ""
	}
	runID := r.held(board, "x")
	if at != model.StepClaimed {
		require.NoError(r.t, r.report(board, "w-x", runID, "x", at))
	}
	require.Equal(r.t, at, r.step(board, "x").GetStatus())
	return runID
}

// TestS2_EveryMoveOfAStep goes through every status, every other one and
// everybody who may ask for it: what the table has happens, and the rest is
// refused without a trace.
func TestS2_EveryMoveOfAStep(t *testing.T) {
	r := newRig(t)
	n := 0
	for from := model.StepPending; from <= model.StepCancelled; from++ {
		for to := model.StepPending; to <= model.StepCancelled; to++ {
			for _, who := range []model.Mover{model.ByHolder, model.ByOrchestrator} {
				if who == model.ByHolder && !model.Held(from) {
					continue
				}
				n++
				board := "b" + string(rune('a'+n/26/26)) + string(rune('a'+n/26%26)) + string(rune('a'+n%26))
				runID := r.stand(board, from)
				before := len(r.events())
				var err error
				if who == model.ByHolder {
					err = r.report(board, "w-x", runID, "x", to)
				} else {
					err = r.say(board, "x", to)
				}
				after := r.step(board, "x")
				if model.StepMayMove(who, from, to) {
					require.NoError(t, err, "%s to %s by %d", model.StepStatusName(from), model.StepStatusName(to), who)
					if to == model.StepPending { // and ready again, since nothing is in the way
						require.Contains(t, []model.StepStatus{model.StepPending, model.StepReady}, after.GetStatus())
						require.Empty(t, after.GetClaimedByAgentId())
					} else {
						require.Equal(t, to, after.GetStatus())
					}
					require.Equal(t, model.Held(after.GetStatus()), after.GetClaimedByRunId() != "")
					continue
				}
				require.ErrorIs(t, err, fault.StepState, "%s to %s by %d", model.StepStatusName(from),
					model.StepStatusName(to), who)
				require.Equal(t, from, after.GetStatus())
				require.Len(t, r.events(), before)
			}
		}
	}
	require.Equal(t, 8*8+2*8, n)
}

func TestB7_WhatReportsWrite(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b", "a"))
	runID := r.held("one", "a")
	last := func() string { ev := r.events(); return ev[len(ev)-1].Type }
	require.NoError(t, r.report("one", "w-a", runID, "a", model.StepRunning))
	require.Equal(t, "task_step_started", last())
	require.NoError(t, r.report("one", "w-a", runID, "a", model.StepRunning))
	require.Equal(t, "task_step_updated", last())
	events := r.events()
	require.Equal(t, runID, events[len(events)-1].ActorRunID)
	require.Equal(t, "w-a", events[len(events)-1].ActorAgentID)
	require.NoError(t, r.report("one", "w-a", runID, "a", model.StepBlocked))
	require.Equal(t, "task_step_blocked", last())
	s := r.step("one", "a")
	require.Empty(t, s.GetClaimedByAgentId()+s.GetClaimedByRunId())
	require.Nil(t, s.GetLeaseExpiresAt())
	require.ErrorIs(t, r.claim("one", "w-a", runID, ""), fault.StepAlreadyClaimedByRun) // B6
	require.ErrorIs(t, r.report("one", "w-a", runID, "a", model.StepPending), fault.StepState)
	require.ErrorIs(t, r.report("one", "w-a", runID, "b", model.StepFailed), fault.PermissionDenied)
	require.NoError(t, r.say("one", "a", model.StepPending))
	require.Equal(t, []string{"task_step_reopened", "task_step_ready"}, planetest.Types(r.events()[len(r.events())-2:]))
}

func TestB9_ALeaseThatIsOver(t *testing.T) {
	for _, how := range []string{"read", "timer"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			r.create("one", in("a"))
			runID := r.held("one", "a")
			r.clk.Advance(DefaultLeaseTerm - time.Second)
			must.Value(r.service.RenewWorkerRun(r.as("w-a", runID), &boardv1.RenewWorkerRunRequest{
				SessionId: owner, BoardId: "one",
			}))(t)
			n := len(r.events()) // a heartbeat writes nothing
			r.clk.Advance(DefaultLeaseTerm - time.Second)
			require.Equal(t, model.StepClaimed, r.step("one", "a").GetStatus())
			require.Len(t, r.events(), n)
			if how == "read" {
				r.service.leases.Stop() // no timer ends the lease
				r.clk.Advance(time.Second)
				require.Equal(t, model.StepReady, r.step("one", "a").GetStatus())
			} else {
				r.clk.Advance(time.Second)
				r.service.leases.Settle()
			}
			require.Equal(t, []string{"task_step_lease_expired", "task_step_ready", "worker_run_ended"},
				planetest.Types(r.events()[n:]))
			n = len(r.events())
			require.ErrorIs(t, r.report("one", "w-a", runID, "a", model.StepCompleted), fault.LeaseExpired)
			require.Len(t, r.events(), n)
			require.NoError(t, r.claim("one", "w2", r.run("one", "w2"), "a"))
		})
	}
}

// TestB9_AnExpiredLeaseFreesItsWorker expires the lease of a connected worker that has room for
// one run: the room is free again without another connection.
func TestB9_AnExpiredLeaseFreesItsWorker(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"))
	r.open("one", 1)
	w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1})
	w.in <- &boardv1.ConnectRequest{Want: 1}
	first := w.next(t).GetAssigned()
	require.Len(t, first, 1)
	r.clk.Advance(DefaultLeaseTerm)
	r.service.leases.Settle()
	require.Equal(t, model.StepReady, r.step("one", "a").GetStatus())
	w.in <- &boardv1.ConnectRequest{Want: 1}
	again := w.assigned(t) // after it was told to stop the first
	require.NotEqual(t, first[0].GetRun().GetRunId(), again.GetRun().GetRunId())
}

func TestX12_AFullTermAfterARestart(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"))
	runID := r.held("one", "a")
	r.down()
	r.clk.Advance(10 * DefaultLeaseTerm)
	r.up()
	r.clk.Advance(DefaultLeaseTerm - time.Second)
	require.Equal(t, model.StepClaimed, r.step("one", "a").GetStatus())
	require.NoError(t, r.report("one", "w-a", runID, "a", model.StepCompleted))
}

func TestS2_151_ABlockedBoard(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b", "a"), in("c"))
	runID := r.held("one", "a")
	idle := r.run("one", "w2")
	require.NoError(t, r.update("one", &boardv1.Operation{Op: model.OpBlockBoard, Reason: "wait for a decision"}))
	require.Equal(t, model.BoardBlocked, r.get("one").GetStatus())
	require.ErrorIs(t, r.claim("one", "w2", idle, "c"), fault.BoardNotDispatchable)
	must.Refuse(r.service.OpenStandingDispatch(r.owner(), &boardv1.OpenStandingDispatchRequest{
		SessionId: owner, BoardId: "one",
	}))(t, fault.BoardNotDispatchable)
	_, err := r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{SessionId: owner, BoardId: "one"})
	require.ErrorIs(t, err, fault.BoardNotDispatchable)
	require.NoError(t, r.report("one", "w-a", runID, "a", model.StepCompleted)) // its worker goes on
	require.Equal(t, model.BoardBlocked, r.get("one").GetStatus())
	require.Equal(t, model.StepReady, r.step("one", "b").GetStatus()) // and so does what follows by itself
	require.ErrorIs(t, r.update("one", &boardv1.Operation{Op: model.OpBlockBoard}), fault.BoardState)
	n := len(r.events())
	require.NoError(t, r.update("one", &boardv1.Operation{Op: model.OpReopenBoard}))
	require.Equal(t, []string{"task_updated", "task_reopened", "task_running"}, planetest.Types(r.events()[n:]))
	require.NoError(t, r.claim("one", "w2", idle, "c"))
	require.ErrorIs(t, r.update("one", &boardv1.Operation{Op: model.OpReopenBoard}), fault.BoardState)
}

func TestS2_425_CompletingABoard(t *testing.T) {
	r := newRig(t)
	complete := func() error {
		_, err := r.service.CompleteBoard(r.owner(), &boardv1.CompleteBoardRequest{SessionId: owner, BoardId: "one"})
		return err
	}
	r.create("one", in("a"), optional(in("b")), optional(in("c", "b")), optional(in("d")))
	err := complete()
	require.ErrorIs(t, err, fault.BoardNotCompleteable)
	require.Equal(t, "a", fault.From(err).Metadata()["step_ids"])
	require.NoError(t, r.say("one", "a", model.StepCompleted))
	runID := r.held("one", "d")
	require.ErrorIs(t, complete(), fault.BoardNotCompleteable) // an optional one is held
	require.NoError(t, r.report("one", "w-d", runID, "d", model.StepFailed))
	n := len(r.events())
	require.NoError(t, complete())
	require.Equal(t, []string{"task_step_cancelled", "task_step_cancelled", "task_completed"},
		planetest.Types(r.events()[n:]))
	require.Equal(t, model.StepFailed, r.step("one", "d").GetStatus())
	require.ErrorIs(t, complete(), fault.TaskTerminal)
	require.ErrorIs(t, r.say("one", "d", model.StepPending), fault.TaskTerminal)
	require.ErrorIs(t, r.update("one", &boardv1.Operation{Op: model.OpReopenBoard}), fault.TaskTerminal)
	require.Len(t, r.events(), n+3)
	// The id may be used again, the WAL's name may not (S2-038).
	must.Refuse(r.service.CreateBoard(r.owner(), &boardv1.CreateBoardRequest{
		SessionId: owner, BoardId: "one", WalName: "one-wal", Title: "t", Steps: []*boardv1.StepInput{in("a")},
	}))(t, fault.PathConflict)
	must.Value(r.service.CreateBoard(r.owner(), &boardv1.CreateBoardRequest{
		SessionId: owner, BoardId: "one", WalName: "one-again", Title: "t", Steps: []*boardv1.StepInput{in("a")},
	}))(t)
	require.Equal(t, model.BoardRunning, r.get("one").GetStatus())
	old := must.Value(r.service.GetBoard(r.owner(), &boardv1.GetBoardRequest{
		SessionId: owner, BoardId: "one", WalName: "one-wal",
	}))(t)
	require.Len(t, old.GetBoard().GetSteps(), 4)
	require.ErrorIs(t, r.report("one", "w-d", runID, "d", model.StepCompleted), fault.TaskTerminal)
}

func TestB12_FailingABoardStopsItsWorkersFirst(t *testing.T) {
	for _, stops := range []bool{true, false} {
		r := newRig(t)
		r.create("one", in("a"), in("b"), in("c", "a"), in("d"))
		require.NoError(t, r.say("one", "d", model.StepCompleted))
		w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1})
		run := must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
			SessionId: owner, BoardId: "one",
		}))(t)
		require.Equal(t, "a", w.next(t).GetAssigned()[0].GetStep().GetStepId())
		done := make(chan *boardv1.FailBoardResponse, 1)
		failed := make(chan error, 1)
		ctx := r.owner()
		go func() {
			resp, err := r.service.FailBoard(ctx, &boardv1.FailBoardRequest{
				SessionId: owner, BoardId: "one", Reason: "no use", RequestId: "f1",
			})
			done <- resp
			failed <- err
		}()
		require.Equal(t, []string{run.GetRun().GetRunId()}, w.next(t).GetCancelRunIds())
		require.True(t, r.get("one").GetTerminating())
		require.ErrorIs(t, r.update("one", &boardv1.Operation{Op: model.OpCancelStep, StepId: "b"}), fault.TaskTerminal)
		if stops {
			w.in <- &boardv1.ConnectRequest{
				Reports: []*boardv1.StepReport{{RunId: run.GetRun().GetRunId(), Finished: true}},
			}
		} else {
			require.Eventually(t, func() bool {
				_, set := r.service.endings.At(
					endingKey(model.BoardKey{Namespace: "acme", Session: owner, WAL: "one-wal"}))
				return set
			}, time.Minute, time.Millisecond)
			r.clk.Advance(DefaultCancelWait)
		}
		resp := <-done
		require.NoError(t, <-failed)
		b := r.get("one")
		require.Equal(t, model.BoardFailed, b.GetStatus())
		require.Equal(t, "no use", b.GetReason())
		for _, s := range b.GetSteps() {
			if s.GetStepId() == "d" {
				require.Equal(t, model.StepCompleted, s.GetStatus())
				continue
			}
			require.Equal(t, model.StepFailed, s.GetStatus(), s.GetStepId())
			require.Equal(t, "task_failed", s.GetReason())
			require.Equal(t, "task_failed", s.GetResultSummary())
		}
		require.EqualValues(t, 4, resp.GetEventsWritten())
		types := planetest.Types(r.events())
		if stops {
			require.Empty(t, resp.GetTimedOutRunIds())
			require.NotContains(t, types, "child_agent_cancel_timeout")
		} else {
			require.Equal(t, []string{run.GetRun().GetRunId()}, resp.GetTimedOutRunIds())
			require.Contains(t, types, "child_agent_cancel_timeout")
		}
		require.Equal(t, "task_failed", types[len(types)-1])
		again := must.Value(r.service.FailBoard(r.owner(), &boardv1.FailBoardRequest{
			SessionId: owner, BoardId: "one", Reason: "no use", RequestId: "f1",
		}))(t)
		require.Equal(t, resp.GetEventIds(), again.GetEventIds())
	}
}

func TestB12_AnEndThatARestartInterrupts(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"))
	r.held("one", "a")
	ctx := r.owner()
	ended := make(chan error, 1)
	go func() {
		_, err := r.service.CancelBoard(ctx, &boardv1.CancelBoardRequest{SessionId: owner, BoardId: "one"})
		ended <- err
	}()
	require.Eventually(t, func() bool { return r.get("one").GetTerminating() }, time.Minute, time.Millisecond)
	service := r.service
	r.down()
	require.Error(t, <-ended)
	_ = service
	r.up()
	r.clk.Advance(DefaultCancelWait)
	require.Eventually(t, func() bool { return r.get("one").GetStatus() == model.BoardCancelled }, time.Minute,
		time.Millisecond)
	require.Equal(t, "task_cancelled", r.step("one", "a").GetReason())
}

// TestS2_EveryMoveOfABoard writes every line about a board's status behind
// every status: what the table does not have makes the board unusable.
func TestS2_EveryMoveOfABoard(t *testing.T) {
	lines := map[model.BoardStatus]proto.Message{
		model.BoardPending: &boardv1.TaskReopened{}, model.BoardRunning: &boardv1.TaskRunning{},
		model.BoardBlocked:   &boardv1.TaskBlocked{},
		model.BoardCompleted: &boardv1.TaskCompleted{}, model.BoardFailed: &boardv1.TaskFailed{},
		model.BoardCancelled: &boardv1.TaskCancelled{},
	}
	require.Len(t, model.BoardMoves, 13)
	for from := model.BoardPending; from <= model.BoardCancelled; from++ {
		for to := model.BoardPending; to <= model.BoardCancelled; to++ {
			b := model.NewBoard(model.BoardKey{Session: owner, WAL: "w"}, "one")
			for _, ev := range rules.DecideCreate(b.Key, request(in("a")), owner, "")[:1] {
				require.NoError(t, b.Apply(ev))
			}
			b.Status = from
			err := b.Apply(b.NewEvent("", lines[to]))
			if model.BoardMoves[model.BoardMove{From: from, To: to}] != 0 {
				require.NoError(t, err, "%s to %s", model.BoardStatusName(from), model.BoardStatusName(to))
				require.Equal(t, to, b.Status)
				continue
			}
			require.Error(t, err, "%s to %s", model.BoardStatusName(from), model.BoardStatusName(to))
			require.Equal(t, from, b.Status)
		}
	}
}

func TestS2_ABoardFromItsBeginningToItsEnd(t *testing.T) {
	r := newRig(t)
	b := r.create("one", in("a"), in("b", "a"))
	require.Equal(t, model.BoardRunning, b.GetStatus())
	require.Equal(t, []string{"a"}, b.GetRootStepIds())
	runA := r.run("one", "w1")
	require.NoError(t, r.claim("one", "w1", runA, "a"))
	require.Equal(t, model.StepClaimed, r.step("one", "a").GetStatus())
	require.NoError(t, r.report("one", "w1", runA, "a", model.StepRunning))
	require.NoError(t, r.report("one", "w1", runA, "a", model.StepCompleted))
	require.Equal(t, model.StepReady, r.step("one", "b").GetStatus())
	runB := r.run("one", "w2")
	require.NoError(t, r.claim("one", "w2", runB, ""))
	require.NoError(t, r.report("one", "w2", runB, "b", model.StepCompleted))
	require.True(t, r.get("one").GetDiagnostics().GetCompleteable())
	_, err := r.service.CompleteBoard(r.owner(), &boardv1.CompleteBoardRequest{SessionId: owner, BoardId: "one"})
	require.NoError(t, err)
	require.Equal(t, []string{
		"task_created", "task_step_ready", "task_running", "worker_dispatched", "task_step_claimed",
		"task_step_started",
		"task_step_completed", "task_step_ready", "worker_dispatched", "task_step_claimed", "task_step_completed",
		"task_completed",
	}, planetest.Types(r.events()))
	require.Equal(t, model.BoardCompleted, r.get("one").GetStatus())
	require.Len(t, r.get("one").GetSteps(), 2)
}
