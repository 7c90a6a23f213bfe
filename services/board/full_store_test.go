package board

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// TestX16_BoardsEndInAFullStore: when only the reserve of the store is left, boards, their runs and their standing
// dispatches can be ended, and nothing else is stored.
func TestX16_BoardsEndInAFullStore(t *testing.T) {
	r := openRig(t)
	r.down()
	r.room = &framelog.Room{}
	r.up()
	t.Cleanup(r.down)
	for _, board := range []string{"completed", "failed", "cancelled"} {
		r.create(board, in("a"), in("b"))
	}
	require.NoError(t, r.say("completed", "a", model.StepCompleted))
	require.NoError(t, r.say("completed", "b", model.StepCompleted))
	dispatch := r.open("cancelled", 1)
	cancelled := r.held("cancelled", "a")
	finished := r.held("cancelled", "b")
	r.held("failed", "a")

	const limit = 1 << 30
	require.NoError(t, r.room.Measure(func() (framelog.RoomState, error) {
		return framelog.RoomState{Used: limit - framelog.RoomReserve(limit) + 1, Limit: limit}, nil
	}))
	must.Refuse(r.service.CreateBoard(r.owner(), &boardv1.CreateBoardRequest{
		SessionId: owner, BoardId: "new", WalName: "new", Title: "New", Steps: []*boardv1.StepInput{in("a")},
	}))(t, fault.StorageFull)
	require.ErrorIs(t, r.say("failed", "b", model.StepCompleted), fault.StorageFull)
	must.Refuse(r.service.OpenStandingDispatch(r.owner(), &boardv1.OpenStandingDispatchRequest{
		SessionId: owner, BoardId: "failed",
	}))(t, fault.StorageFull)

	_, err := r.service.CompleteBoard(r.owner(), &boardv1.CompleteBoardRequest{SessionId: owner, BoardId: "completed"})
	require.NoError(t, err)
	must.Value(r.service.CloseStandingDispatch(r.owner(), &boardv1.CloseStandingDispatchRequest{
		SessionId: owner, BoardId: "cancelled", DispatchId: dispatch,
	}))(t)
	must.Value(r.service.CancelWorkerRun(r.owner(), &boardv1.CancelWorkerRunRequest{
		SessionId: owner, BoardId: "cancelled", RunId: cancelled,
	}))(t)
	must.Value(r.service.FinishWorkerRun(r.as("w-b", finished), &boardv1.FinishWorkerRunRequest{
		SessionId: owner, BoardId: "cancelled",
	}))(t)
	must.Value(r.service.CancelBoard(r.owner(), &boardv1.CancelBoardRequest{SessionId: owner, BoardId: "cancelled"}))(t)

	ended := make(chan error, 1) // after its worker had its time to stop
	ctx := r.owner()
	go func() {
		_, err := r.service.FailBoard(ctx, &boardv1.FailBoardRequest{SessionId: owner, BoardId: "failed"})
		ended <- err
	}()
	require.Eventually(t, func() bool {
		_, set := r.service.endings.At(endingKey(model.BoardKey{Namespace: "acme", Session: owner, WAL: "failed-wal"}))
		return set || len(ended) > 0
	}, time.Minute, time.Millisecond)
	r.clk.Advance(DefaultCancelWait)
	require.NoError(t, <-ended)
	require.Equal(t, model.BoardFailed, r.get("failed").GetStatus())
}
