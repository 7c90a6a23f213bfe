package witness_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/witness"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const plane = "test"

// machine is a process with a data directory of its own.
func machine(t testing.TB, nc *nats.Conn) *witness.Bucket {
	b := must.Value(witness.OpenBucket(t.Context(), nc, 1, zap.NewNop()))(t)
	t.Cleanup(b.Close)
	return b
}

// of returns the witness of the partition on a machine.
func of(t testing.TB, b *witness.Bucket) framelog.Witness {
	files := must.Value(witness.Open(t.TempDir(), zap.NewNop()))(t)
	t.Cleanup(func() { require.NoError(t, files.Close()) })
	return b.Of(plane, 0, files.Of(plane, 0))
}

// end is the end of a log at a sequence number.
func end(seq uint64) framelog.End {
	return framelog.End{Seq: seq, WalSeq: seq, Incarnation: 1, Hash: framelog.Hash{byte(seq)}}
}

// knows waits until the bucket has an end.
func knows(t *testing.T, nc *nats.Conn, want framelog.End) {
	t.Helper()
	require.Eventually(t, func() bool {
		return must.Value(witness.ReadBucket(t.Context(), nc))(t)[plane+"/0"] == want
	}, time.Minute, 10*time.Millisecond)
}

// open opens the partition.
func open(t testing.TB, nc *nats.Conn, w framelog.Witness) (*journal.Partition[*journaltest.State], error) {
	must.Value(jetlog.Ensure(t.Context(), nc, plane, 1, 1))(t)
	cfg := journaltest.Config(must.Value(jetlog.New(nc, plane, 0))(t))
	cfg.Witness = w
	return journal.Open(t.Context(), cfg)
}

// TestR10_ASuccessorOnAnotherMachine: whoever opens a partition next knows how far another machine has written it, and
// that its end is missing.
func TestR10_ASuccessorOnAnotherMachine(t *testing.T) {
	nc := natsdtest.Connect(t)
	require.Empty(t, must.Value(witness.ReadBucket(t.Context(), nc))(t))
	first, second := machine(t, nc), machine(t, nc)
	p := must.Value(open(t, nc, of(t, first)))(t)
	for i := range 3 {
		_, _, err := journal.Do(t.Context(), p, journaltest.Put(fmt.Sprint(i), "v", ""))
		require.NoError(t, err)
	}
	require.NoError(t, p.Close(t.Context()))
	first.Close() // what was recorded in the last second is written
	all := must.Value(witness.ReadBucket(t.Context(), nc))(t)
	require.EqualValues(t, 4, all[plane+"/0"].Seq)
	require.Equal(t, 1, witness.BucketPartitions(all, plane))

	w := of(t, second)
	require.Eventually(t, func() bool { last, err := w.Last(); return err == nil && last == all[plane+"/0"] },
		time.Minute, time.Millisecond)
	p = must.Value(open(t, nc, w))(t)
	require.NoError(t, p.Close(t.Context()))

	js := must.Value(jetstream.New(nc))(t)
	require.NoError(t, js.DeleteStream(t.Context(), jetlog.Place{Plane: plane}.Stream()))
	third := machine(t, nc)
	must.Fail(open(t, nc, of(t, third)))(t, "the journal of test/0 is damaged: wal_seq 1 to ")
	require.NoError(t, witness.RemoveBucket(t.Context(), nc))
	require.NoError(t, witness.RemoveBucket(t.Context(), nc))
	p = must.Value(open(t, nc, of(t, machine(t, nc))))(t, "its operator has begun anew")
	require.NoError(t, p.Close(t.Context()))
}

// TestR10_AnOlderRecordReplacesNoNewerOne: a former holder that was frozen records what it wrote when it wakes.
func TestR10_AnOlderRecordReplacesNoNewerOne(t *testing.T) {
	nc := natsdtest.Connect(t)
	former, now := machine(t, nc), machine(t, nc)
	w, frozen := of(t, now), of(t, former)
	w.Record(end(7))
	knows(t, nc, end(7))
	frozen.Record(end(5))
	w.Record(end(8))
	former.Close()
	now.Close()
	knows(t, nc, end(8))
	require.GreaterOrEqual(t, must.Value(frozen.Last())(t).Seq, uint64(7))
	newer := end(3)
	newer.Incarnation = 2
	last2 := machine(t, nc)
	of(t, last2).Record(newer)
	last2.Close()
	knows(t, nc, newer)
}

// TestABucketThatIsGoneIsMadeAgain: it has what is written from then on.
func TestABucketThatIsGoneIsMadeAgain(t *testing.T) {
	nc := natsdtest.Connect(t)
	b := machine(t, nc)
	w := of(t, b)
	w.Record(end(7))
	knows(t, nc, end(7))
	require.NoError(t, witness.RemoveBucket(t.Context(), nc))
	w.Record(end(8))
	knows(t, nc, end(8))
	w.Record(end(9))
	knows(t, nc, end(9))
}

// TestABucketThatCannotBeMadeAgainYet: it is made once that is possible, and what others write is known then.
func TestABucketThatCannotBeMadeAgainYet(t *testing.T) {
	nc := natsdtest.Connect(t)
	b := machine(t, nc)
	w := of(t, b)
	w.Record(end(7))
	knows(t, nc, end(7))
	require.NoError(t, witness.RemoveBucket(t.Context(), nc))
	js := must.Value(jetstream.New(nc))(t)
	const inTheWay = "IN-THE-WAY"
	must.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: inTheWay, Subjects: []string{"$KV." + witness.BucketName + ".>"},
	}))(t)
	w.Record(end(8))
	require.Never(t, func() bool { // while it tries
		return must.Value(witness.ReadBucket(t.Context(), nc))(t)[plane+"/0"] == end(8)
	}, 3*witness.Interval, witness.Interval/2)
	require.NoError(t, js.DeleteStream(t.Context(), inTheWay))
	knows(t, nc, end(8))
	of(t, machine(t, nc)).Record(end(9))
	require.Eventually(t, func() bool { return must.Value(w.Last())(t) == end(9) }, time.Minute, 10*time.Millisecond)
}

// TestOpenEndsWithItsContext: a server without JetStream is asked until then.
func TestOpenEndsWithItsContext(t *testing.T) {
	nc := natsdtest.Connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.Fail(witness.OpenBucket(ctx, nc, 1, zap.NewNop()))(t, "bucket quartet-witness")
}

// nothing is a witness that remembers nothing.
type nothing struct{}

// Last implements framelog.Witness.
func (nothing) Last() (framelog.End, error) { return framelog.End{}, nil }

// Record implements framelog.Witness.
func (nothing) Record(framelog.End) {}

// BenchmarkRecord is what the bucket adds to each frame, beside what it writes in the background.
func BenchmarkRecord(b *testing.B) {
	w := machine(b, natsdtest.Connect(b)).Of(plane, 0, nothing{})
	for seq := uint64(1); b.Loop(); seq++ {
		w.Record(end(seq))
	}
}

// BenchmarkMutation is what a mutation of a single caller costs with the bucket and without it.
func BenchmarkMutation(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprint("bucket=", with), func(b *testing.B) {
			nc := natsdtest.Connect(b)
			files := must.Value(witness.Open(b.TempDir(), zap.NewNop()))(b)
			defer func() { require.NoError(b, files.Close()) }()
			w := files.Of(plane, 0)
			if with {
				w = machine(b, nc).Of(plane, 0, w)
			}
			p := must.Value(open(b, nc, w))(b)
			defer func() { require.NoError(b, p.Close(context.Background())) }()
			for b.Loop() {
				_, _, err := journal.Do(b.Context(), p, journaltest.Put("k", "v", ""))
				require.NoError(b, err)
			}
		})
	}
}
