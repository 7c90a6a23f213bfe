package verify_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/witness"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
	"quartet/services/storage/derived"
	"quartet/services/storage/verify"
)

const plane = "test"

// rig is a journal in a running server, which is scrubbed.
type rig struct {
	store, salvaged string
	scrubber        *verify.Scrubber
	metrics         *prometheus.Registry
	found           map[string]error // what was reported last
	waited          time.Duration
	p               *journal.Partition[*journaltest.State]
	witnesses       *witness.Files
}

func newRig(t *testing.T, frames int) *rig {
	r := &rig{store: t.TempDir(), salvaged: t.TempDir(), found: map[string]error{}, metrics: prometheus.NewRegistry()}
	srv := must.Value(natsd.Start(natsd.Config{StoreDir: r.store, Port: natsd.InProcess}))(t)
	t.Cleanup(srv.Stop)
	nc := must.Value(srv.Connect("test"))(t)
	t.Cleanup(nc.Close)
	must.Value(jetlog.Ensure(t.Context(), nc, plane, 1, 1))(t)
	log := must.Value(jetlog.New(nc, plane, 0))(t)
	r.witnesses = must.Value(witness.Open(t.TempDir(), zap.NewNop()))(t)
	t.Cleanup(func() { require.NoError(t, r.witnesses.Close()) })
	cfg := journaltest.Config(log)
	cfg.Plane, cfg.Witness = plane, r.witnesses.Of(plane, 0)
	r.p = must.Value(journal.Open(t.Context(), cfg))(t)
	t.Cleanup(func() { require.NoError(t, r.p.Close(context.Background())) })
	for i := range frames {
		r.put(t, fmt.Sprint(i))
	}
	r.scrubber = verify.NewScrubber(verify.ScrubConfig{
		Store: r.store, Account: "$G", SalvageDir: r.salvaged, Planes: []string{plane}, Rate: 1 << 20,
		Logger: zap.NewNop(), Metrics: r.metrics,
		Partitions: func(string) int { return 1 }, Witness: func(string, int) framelog.Witness {
			return r.witnesses.Of(plane, 0)
		},
		Report: func(partition string, damage error) { r.found[partition] = damage },
		Wait:   func(_ context.Context, d time.Duration) { r.waited += d },
	})
	return r
}

func (r *rig) put(t *testing.T, key string) {
	t.Helper()
	_, _, err := journal.Do(t.Context(), r.p, journaltest.Put(key, "v", ""))
	require.NoError(t, err)
}

// block returns the block file of the journal, and its content.
func (r *rig) block(t *testing.T) (string, []byte) {
	t.Helper()
	files := must.Value(blockfile.Files(blockfile.Messages(r.store, "$G", jetlog.Place{Plane: plane}.Stream())))(t)
	require.Len(t, files, 1)
	return files[0].Path, must.Value(os.ReadFile(files[0].Path))(t)
}

// TestScrubReadsWhatIsOnTheDisk: a journal in order is read at the rate, and a bit that changes on the disk while the
// server has the frame in memory is named, once its block was copied aside.
func TestScrubReadsWhatIsOnTheDisk(t *testing.T) {
	r := newRig(t, 40)
	require.NoError(t, r.scrubber.Pass(t.Context()))
	require.Equal(t, map[string]error{"test/0": nil}, r.found)
	path, b := r.block(t)
	require.InDelta(t, float64(len(b))/(1<<20), r.waited.Seconds(), 0.001)
	families := must.Value(r.metrics.Gather())(t)
	values := map[string]float64{}
	for _, f := range families {
		values[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
	}
	require.InDelta(t, float64(len(b)), values["quartet_scrub_bytes_total"], 0)
	require.InDelta(t, 41, values["quartet_scrub_frames_total"], 0)
	require.Positive(t, values["quartet_scrub_last_pass_timestamp_seconds"])

	b[len(b)/2] ^= 1
	require.NoError(t, os.WriteFile(path, b, 0o600))
	require.NoError(t, r.scrubber.Pass(t.Context()))
	require.ErrorContains(t, r.found["test/0"], "the journal of test/0 is damaged: wal_seq")
	copies := must.Value(salvage.Copies(r.salvaged, jetlog.Place{Plane: plane}.Stream()))(t)
	require.Len(t, copies, 1)
	require.Equal(t, b, must.Value(os.ReadFile(copies[0].Path))(t))
	r.put(t, "the partition itself goes on")

	b[len(b)/2] ^= 1
	now := must.Value(os.ReadFile(path))(t)
	require.NoError(t, os.WriteFile(path, append(b, now[len(b):]...), 0o600))
	require.NoError(t, r.scrubber.Pass(t.Context()))
	require.NoError(t, r.found["test/0"], "a pass without damage takes it back")
}

// TestScrubMissesTheEnd: frames that were written and are not on the disk are named by the witness.
func TestScrubMissesTheEnd(t *testing.T) {
	r := newRig(t, 10)
	path, b := r.block(t)
	require.NoError(t, os.Truncate(path, int64(len(b)-20)))
	require.NoError(t, r.scrubber.Pass(t.Context()))
	require.ErrorContains(t, r.found["test/0"], "wal_seq 11 is missing")
}

// TestScrubStartsAndStops: a stop ends a pass that waits.
func TestScrubStartsAndStops(t *testing.T) {
	waiting := make(chan struct{}, 1)
	s := verify.NewScrubber(verify.ScrubConfig{Rate: 1, Logger: zap.NewNop(), Wait: func(ctx context.Context, _ time.Duration) {
		select {
		case waiting <- struct{}{}:
		default:
		}
		<-ctx.Done()
	}})
	require.NoError(t, s.Stop(t.Context()), "not started")
	require.NoError(t, s.Start(t.Context()))
	<-waiting
	require.NoError(t, s.Ready())
	require.NoError(t, s.Stop(t.Context()))
}

// TestScrubReadsOtherStreams: damage to a stream that is not a journal is reported by its name. A block that is
// rewritten while it is read is read again.
func TestScrubReadsOtherStreams(t *testing.T) {
	store, found, rewrite := t.TempDir(), map[string]error{}, func() {}
	events := derived.Streams[0]
	dir := blockfile.Messages(store, "$G", events.Name)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	path, sum := filepath.Join(dir, "1.blk"), blockfile.NewSum(events.Name, 1)
	var b []byte
	for seq := range uint64(9) {
		b = sum.Append(b, blockfile.Record{Seq: seq + 1, At: 1, Subject: "quartet.events.a.b.c.d", Body: []byte("{}")})
	}
	put := func() { require.NoError(t, os.WriteFile(path, b, 0o600)) }
	put()
	s := verify.NewScrubber(verify.ScrubConfig{
		Store: store, Account: "$G", SalvageDir: t.TempDir(), Streams: derived.Stored, Rate: 1 << 20,
		Logger: zap.NewNop(), Metrics: prometheus.NewRegistry(),
		Report: func(name string, damage error) { found[name] = damage },
		Wait:   func(context.Context, time.Duration) { rewrite() },
	})
	require.NoError(t, s.Pass(t.Context()))
	require.Equal(t, map[string]error{"EVENTS": nil, "quartet-output": nil}, found)
	b[len(b)/2] ^= 1
	put()
	b[len(b)/2] ^= 1
	rewrite = put
	require.NoError(t, s.Pass(t.Context()))
	require.NoError(t, found["EVENTS"])
	rewrite = func() {}
	b[len(b)/2] ^= 1
	put()
	require.NoError(t, s.Pass(t.Context()))
	require.ErrorContains(t, found["EVENTS"], "the stream EVENTS, which is copied from the journals, is damaged: "+
		"message 5 is missing")
}
