package board

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/board/model"
)

// assignedRuns returns the runs for which the only connected worker has no room for another.
func (r *rig) assignedRuns() []string {
	r.t.Helper()
	resp := must.Value(r.service.ListWorkers(r.owner(), &boardv1.ListWorkersRequest{}))(r.t)
	require.Len(r.t, resp.GetWorkers(), 1)
	return resp.GetWorkers()[0].GetRunIds()
}

// TestB10_ARepeatedDispatchTakesNoRoom repeats a DispatchWorker whose run has ended: the only room of the worker is
// free for the next one.
func TestB10_ARepeatedDispatchTakesNoRoom(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b"))
	w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1})
	req := &boardv1.DispatchWorkerRequest{SessionId: owner, BoardId: "one", RequestId: "d1"}
	first := must.Value(r.service.DispatchWorker(r.owner(), req))(t)
	rep := stepDone(w.assigned(t).GetRun().GetRunId(), "fine")
	rep.Finished = true
	w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{rep}}
	acks, _ := w.acks(t)
	require.Empty(t, acks[0].GetError())
	again := must.Value(r.service.DispatchWorker(r.owner(), req))(t)
	require.Equal(t, first.GetRun().GetRunId(), again.GetRun().GetRunId())
	require.Equal(t, boardv1.RunStatus_RUN_STATUS_FINISHED, again.GetRun().GetStatus())
	require.Empty(t, r.assignedRuns())
	must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{SessionId: owner, BoardId: "one"}))(t)
	require.Equal(t, "b", w.assigned(t).GetStep().GetStepId())
}

// TestB15_TheEndOfABoardFreesItsWorkers ends a board with a run that holds no step: its worker is told to stop it and
// has room for a run of another board (SPEC B15.4).
func TestB15_TheEndOfABoardFreesItsWorkers(t *testing.T) {
	for name, end := range map[string]func(r *rig) error{
		"completed": func(r *rig) error {
			return must.Err(r.service.CompleteBoard(r.owner(), &boardv1.CompleteBoardRequest{
				SessionId: owner, BoardId: "one",
			}))
		},
		"failed": func(r *rig) error {
			return must.Err(r.service.FailBoard(r.owner(), &boardv1.FailBoardRequest{SessionId: owner, BoardId: "one"}))
		},
		"cancelled": func(r *rig) error {
			_, err := r.service.CancelBoard(r.owner(), &boardv1.CancelBoardRequest{SessionId: owner, BoardId: "one"})
			return err
		},
	} {
		for _, chooses := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " chooses ", chooses), func(t *testing.T) {
				r := newRig(t)
				r.create("one", in("a"))
				r.create("two", in("b"))
				w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1, ChoosesSteps: chooses})
				must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
					SessionId: owner, BoardId: "one",
				}))(t)
				runID := w.assigned(t).GetRun().GetRunId()
				if chooses {
					require.NoError(t, r.say("one", "a", model.StepCompleted))
				} else { // without finished: the run goes on
					w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{stepDone(runID, "fine")}}
					acks, _ := w.acks(t)
					require.Empty(t, acks[0].GetError())
				}
				require.NoError(t, end(r))
				w.told(t, runID)
				require.Empty(t, r.assignedRuns())
				_, leased := r.service.leases.Renew("acme", runID)
				require.False(t, leased)
				w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{{RunId: runID, Finished: true}}}
				acks, _ := w.acks(t)
				require.Equal(t, "task_terminal", acks[0].GetError())
				must.Value(r.service.DispatchWorker(r.owner(), &boardv1.DispatchWorkerRequest{
					SessionId: owner, BoardId: "two",
				}))(t)
				require.Equal(t, "two", w.assigned(t).GetRun().GetBoardId())
			})
		}
	}
}

// TestB15_ARunThatEndsBeforeItBegins gives a worker a run that ended after it was dispatched and before the worker's
// stream began it: the room is free again. Boards of two sessions are in different partitions.
func TestB15_ARunThatEndsBeforeItBegins(t *testing.T) {
	r := openRig(t)
	r.down()
	r.cfg.Share = journal.WholeShare(4)
	r.up()
	t.Cleanup(r.down)
	w := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1})
	parts := map[any]bool{}
	for i := range 8 {
		session := fmt.Sprint("s", i)
		parts[r.service.engine.For("acme", session)] = true
		as := planetest.AsAgent(within(t), session)
		create := func(board string) {
			must.Value(r.service.CreateBoard(as, &boardv1.CreateBoardRequest{
				SessionId: session, BoardId: board, WalName: board, Title: "B", Steps: []*boardv1.StepInput{in("a")},
			}))(t)
		}
		create("ended")
		run, err := r.service.DispatchWorker(as, &boardv1.DispatchWorkerRequest{SessionId: session, BoardId: "ended"})
		require.NoError(t, err)
		runID := w.assigned(t).GetRun().GetRunId()
		require.Equal(t, run.GetRun().GetRunId(), runID)
		require.Equal(t, []string{runID}, r.assignedRuns(), "no other partition makes room")
		w.in <- &boardv1.ConnectRequest{Reports: []*boardv1.StepReport{{RunId: runID, Finished: true}}}
		acks, _ := w.acks(t)
		require.Empty(t, acks[0].GetError())
		must.Value(r.service.CancelBoard(as, &boardv1.CancelBoardRequest{SessionId: session, BoardId: "ended"}))(t)
		reservation, busy := r.service.workers.Reserve("acme", model.DefaultPool, "w1")
		require.NoError(t, busy)
		r.service.workers.Begin(reservation, run.GetRun())
		require.Eventually(t, func() bool { return len(r.assignedRuns()) == 0 }, time.Minute, time.Millisecond)
	}
	require.Greater(t, len(parts), 2, "the sessions lie apart")
}

// TestB15_RoomFollowsTheEvents: the room of a claim is taken in the order of the events, so that a run that ends before
// the worker's stream has its answer frees it.
func TestB15_RoomFollowsTheEvents(t *testing.T) {
	r := newRig(t)
	r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: 1})
	committed := func(payload proto.Message) {
		r.service.workers.Committed([]*journal.Event{
			{Namespace: "acme", SessionID: owner, TaskID: "one", Payload: payload},
		})
	}
	committed(&boardv1.TaskStepClaimed{ClaimedByAgentId: "w1", ClaimedByRunId: "run_x", DispatchId: "dsp_x"})
	require.Equal(t, []string{"run_x"}, r.assignedRuns())
	committed(&boardv1.WorkerRunEnded{RunId: "run_x", Status: boardv1.RunStatus_RUN_STATUS_CANCELLED})
	require.Empty(t, r.assignedRuns())
}
