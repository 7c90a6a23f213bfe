package jetlog_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
)

// A log that goes on in the next segment while it is read is read up to where it ended before, and not on in that
// segment.
func TestR10_ASegmentBeginsWhileAReplicaIsRead(t *testing.T) {
	nc := natsdtest.Connect(t)
	must.Value(jetlog.Ensure(t.Context(), nc, "test", 1, 1))(t)
	log := must.Value(jetlog.New(nc, "test", 0))(t)
	j := journaltest.NewArchivedJournal(log, archive.NewDirectory(t.TempDir(), "test", 0), "test/0")
	j.Write(t, 3, 100)
	want := j.End
	must.Value(log.Prepare(t.Context(), 0))(t)
	end, read := framelog.End{}, 0
	require.NoError(t, log.ScanReplica(t.Context(), "anywhere", func(seq uint64, f framelog.Frame) error {
		if read++; read == 1 {
			j.Close(t)
			j.Write(t, 1, 100)
		}
		next, _, err := end.Next("test/0", seq, f)
		end = next
		return err
	}))
	require.Equal(t, want, end)
	require.Equal(t, 3, read)
}
