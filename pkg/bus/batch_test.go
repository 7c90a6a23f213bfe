package bus

import (
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
)

// A batch is confirmed whole and in order, whatever its size, or refused.
func TestBatches(t *testing.T) {
	nc := natsdtest.Connect(t)
	require.NoError(t, EnsureStream(t.Context(), nc, 1, DefaultBytes, nil))
	js := must.Value(jetstream.New(nc))(t)
	stored := func() int {
		return int(must.Value(js.Stream(t.Context(), Stream))(t).CachedInfo().State.Msgs)
	}
	send := func(b *batches, last bool) error {
		return b.publish(t.Context(), &nats.Msg{Subject: "quartet.events.a.b.c.d", Data: []byte(strconv.Itoa(b.sent))},
			last)
	}
	b := must.Value(newBatches(nc, 5*time.Second))(t)
	want := 0
	for _, n := range []int{1, 2, batchMessages - 1, batchMessages, batchMessages + 1, 3*batchMessages + 7} {
		for i := range n {
			require.NoError(t, send(b, i == n-1))
		}
		want += n
		require.Equal(t, want, stored(), "%d messages", n)
	}
	require.NoError(t, send(b, false))
	b.sent++ // as if one had been lost
	require.NoError(t, send(b, false))
	require.ErrorContains(t, send(b, true), "gap")

	// A stream that does not take batches says so; nothing is taken for done.
	cfg := must.Value(js.Stream(t.Context(), Stream))(t).CachedInfo().Config
	cfg.AllowBatchPublish = false
	must.Value(js.UpdateStream(t.Context(), cfg))(t)
	b = must.Value(newBatches(nc, 5*time.Second))(t)
	require.NoError(t, send(b, false))
	require.Error(t, send(b, true))
}
