package framelog

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWhatLoadingFoundSaysMore: a report of a reader counts for a while, and not beside that of the holder.
func TestWhatLoadingFoundSaysMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Damages
		require.Empty(t, r.All())
		reading, loading := errors.New("reading"), errors.New("loading")
		r.ReportReading("work/0", reading)
		r.ReportReading("agent/0", errors.New("another"))
		require.Equal(t, reading, r.Of("work/0"))
		require.Len(t, r.All(), 2)
		r.Report("work/0", loading)
		r.ReportReading("work/0", reading)
		require.Equal(t, loading, r.Of("work/0"))
		<-time.After(readingTerm - time.Nanosecond)
		require.Len(t, r.All(), 2)
		<-time.After(time.Nanosecond)
		require.Equal(t, []error{loading}, r.All(), "nobody reports it again")
		r.Report("work/0", nil)
		require.Empty(t, r.All())
	})
}

// TestADamagedReplica: while another replica is read, the partition itself is in order.
func TestADamagedReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Damages
		r.ReportReplica("work/0", "nats-2", errors.New("frame 7 is gone"))
		r.ReportReplica("work/0", "nats-2", errors.New("frame 8 is gone"))
		require.NoError(t, r.Of("work/0"))
		require.Len(t, r.All(), 1)
		require.EqualError(t, r.All()[0], "the replica on the NATS server nats-2 is damaged and another one is read: "+
			"frame 8 is gone")
		require.Contains(t, DamageRemedy(r.All()[0].Error()), "stop that NATS server")
		require.Contains(t, DamageRemedy("the journal of work/0 is damaged"), "quartet repair")
		require.Contains(t,
			DamageRemedy("the stream EVENTS, which is copied from the journals, is damaged: message 7 is missing"),
			"copies it again")
		require.Contains(t, DamageRemedy("the stream quartet-snapshot-work-0, which is written again from the journal, is "+
			"damaged: message 7 is missing"), "writes snapshots again")
		require.Contains(t, DamageRemedy("the stream quartet-output, of which there is no other copy, is damaged: message "+
			"7 is missing"), "cannot be copied again")
		<-time.After(replicaTerm)
		require.Empty(t, r.All(), "nobody met it again")
	})
}
