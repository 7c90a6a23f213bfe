package journaltest

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/clock"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
)

// ArchivedJournal is a partition's journal with an archive, to which a test writes.
type ArchivedJournal struct {
	Log       *archive.Log
	Partition string
	End       framelog.End
	writer    *framelog.Writer
	noise     *rand.ChaCha8
}

// NewArchivedJournal returns the journal in an empty log.
func NewArchivedJournal(live archive.Live, store archive.Store, partition string) *ArchivedJournal {
	j := &ArchivedJournal{
		Log: archive.NewLog(live, store, partition), Partition: partition,
		noise: rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%32s", partition)))),
	}
	n := 0
	j.writer = &framelog.Writer{
		Log: live, Partition: partition, Timeout: 10 * time.Second, Logger: zap.NewNop(), Secret: [32]byte{9},
		NewID: func(string) string { n++; return fmt.Sprintf("%s-%d", partition, n) },
	}
	return j
}

// Write writes some frames, each with an event of about so many bytes.
func (j *ArchivedJournal) Write(t *testing.T, frames, bytes int) {
	t.Helper()
	for range frames {
		noise := make([]byte, bytes/2)
		_, _ = j.noise.Read(noise) // it never fails
		f := framelog.Frame{
			ID: j.writer.NewID(""), Generation: 3,
			Body: fmt.Appendf(nil, `{"wal_seq":%d,"event_type":"test","n":"%s"}`+"\n", j.End.WalSeq+1,
				hex.EncodeToString(noise)),
		}
		c := framelog.NewContent(j.writer.Salt(f.ID))
		c.Add(f.Body)
		r := j.writer.Write(t.Context(), j.End, f, c)
		require.Equal(t, framelog.Stored, r.Outcome, r.Err)
		j.End = r.End
	}
}

// Close closes the segment.
func (j *ArchivedJournal) Close(t *testing.T) {
	t.Helper()
	first, err := j.Log.Prepare(t.Context(), j.End.Segment)
	require.NoError(t, err)
	r := j.writer.CloseSegment(t.Context(), j.End, 3, first)
	require.Equal(t, framelog.Stored, r.Outcome, r.Err)
	j.End = r.End
}

// Archive archives all segments but the one that is written to.
func (j *ArchivedJournal) Archive(t *testing.T) {
	t.Helper()
	a := archive.Start(j.Log, clock.System().Now, zap.NewNop(), nil)
	defer a.Stop()
	a.Below(j.End)
	require.NoError(t, a.Settle(t.Context()))
}

// ArchiveFrames returns all frames of a log. The test fails unless each continues the one before it.
func ArchiveFrames(t *testing.T, log framelog.Log, partition string) (all []archive.Frame) {
	t.Helper()
	at := framelog.End{}
	require.NoError(t, log.Scan(t.Context(), 0, func(seq uint64, f framelog.Frame) error {
		next, intact, err := at.Next(partition, seq, f)
		require.NoError(t, err)
		require.True(t, intact)
		if at = next; len(f.Body) == 0 {
			f.Body = nil
		}
		f.Body = append([]byte(nil), f.Body...)
		all = append(all, archive.Frame{Seq: seq, Frame: f})
		return nil
	}))
	return all
}
