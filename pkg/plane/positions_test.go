package plane_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// What was received counts only once what it led to is durable.
func TestDurablePositions(t *testing.T) {
	journals := planetest.NewJournals()
	var faults *journaltest.FaultLog
	journals.Wrap = func(name string, log framelog.Log) framelog.Log {
		if name != "test" {
			return log
		}
		faults = journaltest.NewFaultLog(log)
		return faults
	}
	source := journals.NewWriter(t, "source", errdetails.File_google_rpc_error_details_proto)
	write := func() {
		ev := journaltest.Event("k", "v")
		ev.AgentID = "a1"
		source.Write(ev)
	}
	deps := over(journals)
	deps.Positions = &plane.Positions{}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Empty(t, deps.Positions.Durable(ended, "test", 0))
	e := open(t, deps)
	// reaches waits until n events had their effects, and for the position behind them.
	reaches := func(n int) uint64 {
		require.Eventually(t, func() bool {
			got, _, err := count(as(rpc.RoleOperator), e, "copied")
			return err == nil && got == n
		}, time.Minute, time.Millisecond)
		var at uint64
		require.Eventually(t, func() bool {
			end := journals.Events(t, "source", journaltest.Registry())
			all := deps.Positions.Durable(t.Context(), "test", 0)
			if len(all) != 1 {
				return false
			}
			at = all[0].WalSeq
			return at == end[len(end)-1].WalSeq
		}, time.Minute, time.Millisecond)
		return at
	}
	write()
	first := reaches(1)

	faults.Inject(journaltest.Held)
	write()
	<-faults.Held()
	require.Equal(t, []plane.Position{{Plane: "source", Partition: 0, WalSeq: first}},
		deps.Positions.Durable(ended, "test", 0), "the effect is being written")
	faults.Release()
	require.Greater(t, reaches(2), first)
	require.NoError(t, e.Close(context.Background()))
	require.Empty(t, deps.Positions.Durable(ended, "test", 0), "the partition is not held any more")
}
