package framelog_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

const partition = "from/0"

// writtenFrames returns the frames of a log, and its end behind each.
func writtenFrames(t *testing.T, n int) (ends []framelog.End, frames []framelog.Frame) {
	t.Helper()
	log := journaltest.NewMemLog()
	w := framelog.Writer{
		Log: log, Partition: partition, NewID: func(string) string { return fmt.Sprint(len(ends)) },
		Timeout: time.Minute, Logger: zap.NewNop(),
	}
	end := framelog.End{}
	for i := range n {
		f := framelog.Frame{
			ID: fmt.Sprint("frame", i), Generation: 1,
			Body: fmt.Appendf(nil, `{"wal_seq":%d,"event_type":"error_info","agent_id":"keeper"}`+"\n", i+1),
		}
		c := framelog.NewContent(w.Salt(f.ID))
		c.Add(f.Body)
		sealed, _ := w.Seal(end, f, c)
		end = must.Value(w.Append(t.Context(), end, f, c))(t)
		ends, frames = append(ends, end), append(frames, sealed)
	}
	return ends, frames
}

// again returns a log with the first frames, and then, at seq, a new incarnation.
func again(t *testing.T, ends []framelog.End, frames []framelog.Frame, kept int, seq uint64,
	b framelog.Beginning,
) framelog.Log {
	t.Helper()
	log := journaltest.NewMemLog()
	for i, f := range frames[:kept] {
		log.Put(ends[i].Seq, f)
	}
	b.Plane, b.At = "from", time.UnixMilli(1e12)
	n := 0
	f, err := b.Frame(func(prefix string) string { n++; return fmt.Sprint(prefix, "begin", n) }, framelog.Salt{1})
	require.NoError(t, err)
	log.Put(seq, f)
	return log
}

// follow returns the sequence numbers that somebody reads who has read up to after.
func follow(t *testing.T, log framelog.Log, after framelog.End) (seqs []uint64, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = framelog.FollowIncarnations(ctx, log, partition, after, func(at framelog.End, _ framelog.Frame) error {
		if seqs = append(seqs, at.Seq); at.Incarnation > 1 {
			return errEnough
		}
		return nil
	})
	return seqs, err
}

var errEnough = errors.New("enough")

// TestFollowersGoOnBehindALoss: who has read frames that were given up goes on with the new incarnation, and who has
// not reads what was kept first.
func TestFollowersGoOnBehindALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends, frames := writtenFrames(t, 10)
		log := again(t, ends, frames, 6, 2000, framelog.Beginning{
			Behind: ends[5], Number: 2, First: 1011, Generation: 7,
		})
		for _, read := range []int{0, 3, 6, 7, 10} {
			after, want := framelog.End{}, []uint64(nil)
			if read > 0 {
				after = ends[read-1]
			}
			for i := read; i < 6; i++ {
				want = append(want, ends[i].Seq)
			}
			seqs, err := follow(t, log, after)
			require.ErrorIs(t, err, errEnough, read)
			require.Equal(t, append(want, 2000), seqs, read)
		}
	})
}

// TestWhatWasNotGivenUpIsDamage: a frame that the new incarnation continues, or a number that it may use again, is no
// accepted loss.
func TestWhatWasNotGivenUpIsDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends, frames := writtenFrames(t, 10)
		var broken *framelog.Broken
		// The kept frames 4 to 6 are gone as well.
		log := again(t, ends, frames, 3, 2000, framelog.Beginning{
			Behind: ends[5], Number: 2, First: 1011, Generation: 7,
		})
		_, err := follow(t, log, ends[4])
		require.ErrorAs(t, err, &broken)
		// The incarnation is not a newer one for this reader.
		log = again(t, ends, frames, 6, 2000, framelog.Beginning{
			Behind: ends[5], Number: 2, First: 1011, Generation: 7,
		})
		newer := ends[8]
		newer.Incarnation = 2
		_, err = follow(t, log, newer)
		require.ErrorAs(t, err, &broken)
		// It uses wal_seqs that this reader has read.
		log = again(t, ends, frames, 6, 2000, framelog.Beginning{Behind: ends[5], Number: 2, First: 8, Generation: 7})
		_, err = follow(t, log, ends[8])
		require.ErrorAs(t, err, &broken)
	})
}

// TestAPartitionLoadsItsIncarnations: a partition loads what was kept, continues behind the gap of wal_seq, and takes
// its generation from the beginning.
func TestAPartitionLoadsItsIncarnations(t *testing.T) {
	log := journaltest.NewMemLog()
	cfg := journaltest.Config(log)
	cfg.Plane = "from"
	p := must.Value(journal.Open(t.Context(), cfg))(t)
	put := func(key string) uint64 {
		_, r, err := journal.Do(t.Context(), p, journaltest.Put(key, "v", "request-"+key))
		require.NoError(t, err)
		return r.Seq
	}
	put("a")
	last := put("b")
	require.NoError(t, p.Close(t.Context()))
	var end framelog.End
	require.NoError(t, framelog.Follow(t.Context(), stopping{log}, partition, framelog.End{},
		func(at framelog.End, _ framelog.Frame) error {
			end = at
			return nil
		}))
	f := must.Value(framelog.Beginning{
		Plane: "from", Behind: end, Number: 2, First: 5000, Generation: 40, At: time.UnixMilli(1e12),
	}.Frame(cfg.NewID, framelog.Salt{1}))(t)
	log.Put(900, f)

	p = must.Value(journal.Open(t.Context(), cfg))(t)
	s, _, err := journal.View(t.Context(), p, journaltest.Snapshot)
	require.NoError(t, err)
	require.Equal(t, []string{"a=v", "b=v"}, s.Log)
	_, repeated, err := journal.Do(t.Context(), p, journaltest.Put("b", "v", "request-b"))
	require.NoError(t, err)
	require.Equal(t, last, repeated.Seq, "a request of before is remembered")
	require.Equal(t, uint64(5003), put("c"), "behind the beginning, its partition_opened, and that of this load")
	require.NoError(t, p.Close(t.Context()))
}

// stopping is a log whose Follow ends at its end.
type stopping struct{ framelog.Log }

// Follow implements framelog.Log.
func (s stopping) Follow(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	return s.Scan(ctx, from, fn)
}
