package verify_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/natsd/blockfile"
	"quartet/services/storage/archives"
	"quartet/services/storage/datadir"
	"quartet/services/storage/storagetest"
	"quartet/services/storage/verify"
)

// archiveRig is a journal with an archive, which is scrubbed.
type archiveRig struct {
	*storagetest.Journal
	scrubber *verify.Scrubber
	metrics  *prometheus.Registry
	damage   error
	waited   time.Duration
	reading  func() // is called after each read
}

func newArchiveRig(t *testing.T) *archiveRig {
	r := &archiveRig{Journal: storagetest.New(t, nil), metrics: prometheus.NewRegistry(), reading: func() {}}
	r.scrubber = verify.NewScrubber(verify.ScrubConfig{
		Store: datadir.Store(r.DataDir), Account: "$G", Archives: archives.Place{Dir: datadir.Archive(r.DataDir)}.Config,
		SalvageDir: datadir.Salvage(r.DataDir),
		Planes:     []string{storagetest.Plane}, Rate: 1 << 20, Logger: zap.NewNop(), Metrics: r.metrics,
		Partitions: func(string) int { return 1 }, Witness: func(plane string, i int) framelog.Witness {
			return r.Witnesses.Of(plane, i)
		},
		Report: func(_ string, damage error) { r.damage = damage },
		Wait:   func(_ context.Context, d time.Duration) { r.waited += d; r.reading() },
	})
	return r
}

// block returns the first block of a segment.
func (r *archiveRig) block(t *testing.T, segment uint64) string {
	t.Helper()
	files := must.Value(blockfile.Files(blockfile.Messages(datadir.Store(r.DataDir), "$G",
		jetlog.Place{Plane: storagetest.Plane, Segment: segment}.Stream())))(t)
	require.NotEmpty(t, files)
	return files[0].Path
}

// TestScrubReadsTheArchive damages the archive of a journal in each way.
func TestScrubReadsTheArchive(t *testing.T) {
	r := newArchiveRig(t)
	damages := r.Archived(t)
	undo := storagetest.Flip(t, r.block(t, 2), 400_000)
	require.NoError(t, r.scrubber.Pass(t.Context()))
	require.NoError(t, r.damage, "what is archived only waits to be removed")
	require.NoFileExists(t, filepath.Join(datadir.Salvage(r.DataDir), jetlog.Place{
		Plane:   storagetest.Plane,
		Segment: 2,
	}.Stream()))
	undo()
	r.Drop(t)
	for _, d := range damages {
		t.Run(d.Name, func(t *testing.T) {
			undo := d.Do(t)
			require.NoError(t, r.scrubber.Pass(t.Context()))
			undo()
			if d.Named == "" {
				require.NoError(t, r.damage)
			} else {
				require.Error(t, r.damage)
				require.Regexp(t, "^the journal of test/0 is damaged: "+d.Named, r.damage.Error())
			}
			require.NoError(t, r.scrubber.Pass(t.Context()))
			require.NoError(t, r.damage, "a pass without damage takes it back")
		})
	}
	undo = storagetest.Flip(t, r.block(t, 3), 100)
	require.NoError(t, r.scrubber.Pass(t.Context()))
	undo()
	require.ErrorContains(t, r.damage, "the journal of test/0 is damaged: wal_seq")
}

// TestScrubReadsTheArchive_Rate requires that the archive is read at the rate, and counted.
func TestScrubReadsTheArchive_Rate(t *testing.T) {
	r := newArchiveRig(t)
	r.Segments(t, 2, 3, 200_000)
	r.Write(t, 1, 10)
	value := func(name string) float64 {
		families := must.Value(r.metrics.Gather())(t)
		for _, f := range families {
			if f.GetName() == name {
				return f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return 0
	}
	for range 2 {
		r.Archive(t)
		r.Drop(t)
	}
	require.NoError(t, r.scrubber.Pass(t.Context()))
	require.NoError(t, r.damage)
	require.InDelta(t, float64(len(r.Ends)), value("quartet_scrub_frames_total"), 0)
	require.Positive(t, value("quartet_scrub_bytes_total"))
	require.InDelta(t, value("quartet_scrub_bytes_total")/(1<<20), r.waited.Seconds(), 0.001)
}

// TestScrubReadsTheArchive_WhileItGrows archives segments at each moment at which a pass waits: in the archive, and in
// the log. The log goes on in a new segment then, so that all segments may be archived that a pass knows of.
func TestScrubReadsTheArchive_WhileItGrows(t *testing.T) {
	for _, more := range []int{3, 4} {
		for after, reached := 0, true; reached; after++ {
			r := newArchiveRig(t)
			r.Segments(t, 1, 3, 10)
			r.Write(t, 1, 10)
			r.Archive(t)
			r.Drop(t)
			for range 3 {
				r.Write(t, 3, 10)
				r.Roll(t)
			}
			r.Write(t, 3, 10)
			waits := 0
			r.reading = func() {
				if waits++; waits != after+1 {
					return
				}
				r.Roll(t)
				r.Write(t, 1, 10)
				for range more {
					r.Archive(t)
					r.Drop(t)
				}
			}
			require.NoError(t, r.scrubber.Pass(t.Context()))
			require.NoError(t, r.damage, "%d archived after %d reads", more, after)
			if reached = waits > after; !reached {
				require.Greater(t, after, 4)
			}
		}
	}
}

// TestScrubReadsASegmentThatIsClosedMeanwhile: the stream of the next segment is there before a segment is closed. A
// pass that knows both, and reads the first one before its last frames are written, finds them when it comes to the
// next one. A frame of them that is gone is damage.
func TestScrubReadsASegmentThatIsClosedMeanwhile(t *testing.T) {
	for _, lost := range []bool{false, true} {
		r := newArchiveRig(t)
		r.Segments(t, 1, 3, 10)
		r.Write(t, 3, 10)
		open := r.End.Segment
		_, err := r.Log.Prepare(t.Context(), open) // as a writer does before it closes the segment
		require.NoError(t, err)
		waits := 0
		r.reading = func() {
			if waits++; waits != 2 { // the open segment was read
				return
			}
			before := must.Value(os.ReadFile(r.block(t, open)))(t)
			r.Write(t, 2, 10)
			r.Roll(t)
			r.Write(t, 2, 10)
			if lost {
				require.NoError(t, os.WriteFile(r.block(t, open), before, 0o600))
			}
		}
		require.NoError(t, r.scrubber.Pass(t.Context()))
		require.Greater(t, waits, 2, "the next segment was read")
		if lost {
			require.ErrorContains(t, r.damage, "wal_seq 7 to 8 are missing")
			continue
		}
		require.NoError(t, r.damage)
	}
}

// TestScrubTrustsAnArchiveElsewhere: of an archive in a bucket the catalog is read, and the log must continue it.
func TestScrubTrustsAnArchiveElsewhere(t *testing.T) {
	store := &journaltest.MemArchive{}
	r := &archiveRig{Journal: storagetest.New(t, func(*nats.Conn) archive.Store { return store })}
	r.scrubber = verify.NewScrubber(verify.ScrubConfig{
		Store: datadir.Store(r.DataDir), Account: "$G",
		Archives: func(plane string, partition int) archives.JournalConfig {
			return archives.JournalConfig{
				Partition: framelog.PartitionName(plane, partition), Store: store, Where: "elsewhere",
			}
		},
		SalvageDir: datadir.Salvage(r.DataDir),
		Planes:     []string{storagetest.Plane}, Rate: 1 << 20, Logger: zap.NewNop(),
		Metrics:    prometheus.NewRegistry(),
		Partitions: func(string) int { return 1 }, Witness: func(plane string, i int) framelog.Witness {
			return r.Witnesses.Of(plane, i)
		},
		Report: func(_ string, damage error) { r.damage = damage },
		Wait:   func(_ context.Context, d time.Duration) { r.waited += d },
	})
	r.Segments(t, 3, 3, 200_000)
	r.Write(t, 2, 10)
	for range 2 {
		r.Archive(t)
		r.Drop(t)
	}
	names := must.Value(store.Names(t.Context()))(t)
	for name := range names {
		require.NoError(t, store.Remove(t.Context(), name))
	}
	require.NoError(t, r.scrubber.Pass(t.Context()))
	require.NoError(t, r.damage, "segments in a bucket are not read")
	storagetest.Flip(t, r.block(t, 2), 400_000)
	require.NoError(t, r.scrubber.Pass(t.Context()))
	require.ErrorContains(t, r.damage, "the journal of test/0 is damaged")
	version := uint64(2)
	require.NoError(t, store.ReplaceCatalog(t.Context(), version, []byte("another")))
	require.NoError(t, r.scrubber.Pass(t.Context()))
	require.ErrorContains(t, r.damage, "the catalog of its archive elsewhere cannot be read")
}
