package board

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/board/model"
)

// TestA8_BoardsOfADeletedOrchestrator: they are cancelled, with their workers' steps
// after the bounded wait, each once and over restarts; others' stay, and no new
// one is made. A pause or a stop changes nothing.
func TestA8_BoardsOfADeletedOrchestrator(t *testing.T) {
	r := &rig{t: t, clk: clock.NewFake(epoch), ids: &id.Sequence{}, journals: planetest.NewJournals()}
	writer := r.journals.NewWriter(t, "agent", agentv1.File_quartet_agent_v1_agent_event_proto)
	r.up()
	t.Cleanup(r.down)
	r.create("free", in("a"), in("b", "a"))
	r.create("held", in("a"), in("b"))
	r.create("done", in("a"))
	must.Value(r.service.CancelBoard(r.owner(), &boardv1.CancelBoardRequest{
		SessionId: owner, BoardId: "done", Reason: "before",
	}))(t)
	r.held("held", "a")
	must.Value(r.service.CreateBoard(planetest.AsAgent(within(t), "other"), &boardv1.CreateBoardRequest{
		SessionId: "other", BoardId: "free", WalName: "w", Title: "Other", Steps: []*boardv1.StepInput{in("a")},
	}))(t)
	say := func() {
		writer.Write(&journal.Event{Namespace: "acme", AgentID: owner, Payload: &agentv1.AgentDeleting{
			Agent: &agentv1.Agent{AgentId: owner},
		}})
	}
	say()
	eventually := func(ok func() bool) {
		t.Helper()
		require.Eventually(t, ok, time.Minute, 2*time.Millisecond)
	}
	eventually(func() bool { return r.get("free").GetStatus() == model.BoardCancelled })
	require.Equal(t, "owner_deleted", r.get("free").GetReason())
	require.NotEqual(t, model.BoardCancelled, r.get("held").GetStatus(), "a worker has its time to stop")
	r.restart() // in the middle of it
	say()       // again
	eventually(func() bool {
		r.clk.Advance(DefaultCancelWait)
		return r.get("held").GetStatus() == model.BoardCancelled
	})
	require.Equal(t, "before", r.get("done").GetReason())
	ends := 0
	for _, ev := range r.events() {
		if ev.Type == "task_cancelled" {
			ends++
		}
	}
	require.Equal(t, 3, ends, "each once")
	must.Refuse(r.service.CreateBoard(r.owner(), &boardv1.CreateBoardRequest{
		SessionId: owner, BoardId: "late", WalName: "late", Title: "Late", Steps: []*boardv1.StepInput{in("a")},
	}))(t, fault.AgentDeleted)
	got := must.Value(r.service.GetBoard(planetest.AsAgent(within(t), "other"), &boardv1.GetBoardRequest{
		SessionId: "other",
		BoardId:   "free",
	}))(t)
	require.Equal(t, model.BoardRunning, got.GetBoard().GetStatus())
	require.NotEmpty(t, r.wal("held-wal"), "the logs stay")
}
