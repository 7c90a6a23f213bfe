package board

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	"quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane/planetest"
)

// TestB11_OneStreamOverPartitions: boards of sessions that live in different
// partitions reach a worker by its one stream; it is never given more than it has
// room for, every step runs once, and all go on after a restart (S2-266, B11).
func TestB11_OneStreamOverPartitions(t *testing.T) {
	const sessions, steps, capacity = 8, 12, 3
	r := openRig(t)
	r.down()
	r.cfg.Share = journal.WholeShare(4)
	r.up()
	t.Cleanup(r.down)
	parts := map[any]bool{}
	for i := range sessions {
		session := fmt.Sprint("s", i)
		parts[r.service.engine.For("acme", session)] = true
		as := planetest.AsAgent(within(t), session)
		req := &boardv1.CreateBoardRequest{SessionId: session, BoardId: "b", WalName: "b", Title: "B"}
		for j := range steps {
			var deps []string
			if j > 0 && j%3 == 0 {
				deps = []string{fmt.Sprint("x", j-1)}
			}
			req.Steps = append(req.Steps, in(fmt.Sprint("x", j), deps...))
		}
		must.Value(r.service.CreateBoard(as, req))(t)
		must.Value(r.service.OpenStandingDispatch(as, &boardv1.OpenStandingDispatchRequest{
			SessionId: session, BoardId: "b", MaxParallel: 2,
		}))(t)
	}
	require.Greater(t, len(parts), 2, "the sessions lie apart")
	ran := map[string]int{}
	work := func(w *pair, most int) {
		w.in <- &boardv1.ConnectRequest{Want: capacity}
		held, done := map[string]string{}, 0
		for done < most {
			m := w.next(t)
			for _, a := range m.GetAcks() {
				require.Empty(t, a.GetError())
				if held[a.GetRunId()] != "" {
					delete(held, a.GetRunId())
					done++
				}
			}
			var reports []*boardv1.StepReport
			for _, a := range m.GetAssigned() {
				ran[a.GetRun().GetSessionId()+"/"+a.GetStep().GetStepId()]++
				held[a.GetRun().GetRunId()] = a.GetStep().GetStepId()
				rep := stepDone(a.GetRun().GetRunId(), "fine")
				rep.Finished = true
				reports = append(reports, rep)
			}
			require.LessOrEqual(t, len(held), capacity)
			if len(reports) > 0 {
				w.in <- &boardv1.ConnectRequest{Reports: reports, Want: int32(len(reports))}
			}
		}
	}
	work(r.connect(&boardv1.BoardWorkerHello{WorkerId: "w1", Capacity: capacity}), sessions*steps/2)
	r.restart()
	w2 := r.connect(&boardv1.BoardWorkerHello{WorkerId: "w2", Capacity: capacity})
	w2.in <- &boardv1.ConnectRequest{Want: capacity}
	// What the first one was given and did not report is given back by its lease.
	finished := func() (n int) {
		for i := range sessions {
			got, err := r.service.GetBoard(planetest.AsAgent(within(t), fmt.Sprint("s", i)), &boardv1.GetBoardRequest{
				SessionId: fmt.Sprint("s", i), BoardId: "b",
			})
			require.NoError(t, err)
			n += int(got.GetBoard().GetCounts().GetCompleted())
		}
		return n
	}
	deadline := time.Now().Add(time.Minute)
	for finished() < sessions*steps {
		require.True(t, time.Now().Before(deadline), "%d of %d steps", finished(), sessions*steps)
		select {
		case m := <-w2.out:
			var reports []*boardv1.StepReport
			for _, a := range m.GetAssigned() {
				ran[a.GetRun().GetSessionId()+"/"+a.GetStep().GetStepId()]++
				rep := stepDone(a.GetRun().GetRunId(), "fine")
				rep.Finished = true
				reports = append(reports, rep)
			}
			if len(reports) > 0 {
				w2.in <- &boardv1.ConnectRequest{Reports: reports, Want: int32(len(reports))}
			}
		case <-time.After(50 * time.Millisecond):
			r.clk.Advance(DefaultLeaseTerm)
		}
	}
	require.Len(t, ran, sessions*steps)
	again := 0
	for _, n := range ran {
		again += n - 1
	}
	require.LessOrEqual(t, again, capacity, "only what the first worker took along")
}
