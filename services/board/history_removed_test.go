package board

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/board/model"
	"quartet/services/board/wal"
)

// The log of a board is kept whole until the board's end is old, and then removed whole; readers are told so by name
// (SPEC B16).
func TestB16_LogsOfBoards(t *testing.T) {
	r := newRig(t)
	end := func(board string) {
		t.Helper()
		must.Value(r.service.CancelBoard(r.owner(), &boardv1.CancelBoardRequest{SessionId: owner, BoardId: board}))(t)
	}
	r.create("old", in("a"))
	r.create("lately", in("a"))
	r.create("active", in("a"), in("b"))
	r.run("active", "w") // claims nothing, so that no lease expires
	end("old")
	r.clk.Advance(time.Hour)
	before := r.clk.Now()
	r.clk.Advance(time.Minute)
	end("lately")
	active, lately := r.wal("active-wal"), r.wal("lately-wal")
	r.create("again", in("c"))
	r.restart() // nothing is cached

	removed := planetest.Forget(t, r.journals, Plane, wal.Registry, model.NewState(time.Minute), before)
	for _, ev := range removed {
		require.True(t, ev.TaskID == "old" || !model.InWAL(ev), "%s of %s", ev.Type, ev.TaskID)
	}
	require.Contains(t, planetest.Types(removed), "task_created")
	require.Contains(t, planetest.Types(removed), "worker_dispatched")

	require.Equal(t, active, r.wal("active-wal"))
	require.Equal(t, lately, r.wal("lately-wal"))
	require.Equal(t, model.StepCancelled, r.step("lately", "a").GetStatus())
	require.NoError(t, r.say("active", "a", model.StepCompleted))

	_, err := r.service.ReadWal(r.owner(), &boardv1.ReadWalRequest{SessionId: owner, WalName: "old-wal"})
	require.ErrorIs(t, err, fault.HistoryRemoved)
	require.Equal(t, map[string]string{"session_id": owner, "board_id": "old", "wal_name": "old-wal"}, fault.From(err).
		Metadata())
	require.ErrorContains(t, err, `board "old" ended before history is kept (history-days)`)
	must.Refuse(r.service.ReadWal(r.owner(), &boardv1.ReadWalRequest{
		SessionId: owner, WalName: "old-wal", AfterWalSeq: 1, Limit: 1,
	}))(t, fault.HistoryRemoved)
	_, err = r.service.GetBoard(r.owner(), &boardv1.GetBoardRequest{SessionId: owner, BoardId: "old"})
	require.ErrorIs(t, err, fault.HistoryRemoved)
	_, err = r.service.QuerySteps(r.owner(), &boardv1.QueryStepsRequest{SessionId: owner, BoardId: "old"})
	require.ErrorIs(t, err, fault.HistoryRemoved)
	got := must.Value(r.service.GetBoard(r.owner(), &boardv1.GetBoardRequest{
		SessionId: owner, BoardId: "old", OmitSteps: true,
	}))(t)
	require.Equal(t, model.BoardCancelled, got.GetBoard().GetStatus())
	inspected, err := r.service.InspectBoard(r.owner(), &boardv1.InspectBoardRequest{SessionId: owner, BoardId: "old"})
	require.NoError(t, err)
	require.Empty(t, inspected.GetTimeline())
	require.Equal(t, "old", inspected.GetBoard().GetBoardId())
	sum := must.Value(r.service.GetSummary(r.owner(), &boardv1.GetSummaryRequest{SessionId: owner}))(t)
	require.Contains(t, sum.GetText(), "active")
}

// Of boards that had the same id one after the other, each keeps its own lines (SPEC B16).
func TestB16_ABoardIDThatIsUsedAgain(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"))
	must.Value(r.service.CancelBoard(r.owner(), &boardv1.CancelBoardRequest{SessionId: owner, BoardId: "one"}))(t)
	r.clk.Advance(time.Hour)
	must.Value(r.service.CreateBoard(r.owner(), &boardv1.CreateBoardRequest{
		SessionId: owner, BoardId: "one", WalName: "next-wal", Title: "Again", Steps: []*boardv1.StepInput{in("b")},
	}))(t)
	first := slices.IndexFunc(r.events(), func(e *journal.Event) bool { return e.CreatedAt.After(epoch) })
	removed := planetest.Forget(t, r.journals, Plane, wal.Registry, model.NewState(time.Minute),
		r.clk.Now().Add(time.Hour))
	require.Len(t, removed, first)
	require.NotEmpty(t, r.wal("next-wal"))
}
