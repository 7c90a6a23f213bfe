package bus

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
)

// A cluster that chooses a leader drops requests. Each is asked for again.
func TestAStreamThatIsNotAnsweredFor(t *testing.T) {
	srv := must.Value(server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
	}))(t)
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	require.True(t, srv.ReadyForConnections(10*time.Second))
	nc := must.Value(nats.Connect(srv.ClientURL()))(t)
	t.Cleanup(nc.Close)
	var asked atomic.Int32
	// JetStream's side: the first question for the stream is lost, and so is the
	// first order to make it.
	_, err := nc.Subscribe("$JS.API.STREAM.>", func(m *nats.Msg) {
		n := asked.Add(1)
		switch {
		case n == 1, n == 3:
		case strings.Contains(m.Subject, ".INFO."):
			// fails with the test
			_ = m.Respond([]byte(`{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`))
		default:
			_ = m.Respond(
				[]byte(`{"config":{"name":"EVENTS","subjects":["quartet.events.>"]},"state":{},"created":"2026-01-01T00:00:00Z"}`))
		}
	})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, EnsureStream(ctx, nc, 3, DefaultBytes, nil))
	require.EqualValues(t, 5, asked.Load(), "info, info, create, info, create")

	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, EnsureStream(over, nc, 3, DefaultBytes, nil), context.Canceled)
}

// TestEventsTakeLessWhereThereIsLess: a server without room for all that EVENTS may keep gets a smaller stream, and one
// with too little an error.
func TestEventsTakeLessWhereThereIsLess(t *testing.T) {
	for space, want := range map[int64]int64{2 * DefaultBytes: DefaultBytes, DefaultBytes: DefaultBytes, DefaultBytes -
		1: DefaultBytes / 2, minBytes: minBytes, minBytes - 1: 0} {
		srv, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true,
			NoSigs: true, JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: space,
		})
		require.NoError(t, err)
		srv.Start()
		require.True(t, srv.ReadyForConnections(10*time.Second))
		nc := must.Value(nats.Connect(srv.ClientURL()))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for range 2 { // an existing stream keeps what it has
			err = EnsureStream(ctx, nc, 1, DefaultBytes, nil)
			if want == 0 {
				require.ErrorContains(t, err, "insufficient storage", space)
				continue
			}
			require.NoError(t, err, space)
			js := must.Value(jetstream.New(nc))(t)
			require.Equal(t, want, must.Value(js.Stream(ctx, Stream))(t).CachedInfo().Config.MaxBytes, space)
		}
		cancel()
		nc.Close()
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// TestX16_EventsTakeAQuarter: EVENTS is for external consumers, and must leave the store to the journals.
func TestX16_EventsTakeAQuarter(t *testing.T) {
	for limit, want := range map[int64]int64{
		0: DefaultBytes, 1 << 40: DefaultBytes, 4 * DefaultBytes: DefaultBytes,
		4*DefaultBytes - 1: DefaultBytes / 2, 24 << 20: 4 << 20, 1 << 20: minBytes,
	} {
		nc := natsdtest.Connect(t)
		space := &framelog.Room{}
		require.NoError(t, space.Measure(func() (framelog.RoomState, error) {
			return framelog.RoomState{Limit: limit}, nil
		}))
		require.NoError(t, EnsureStream(t.Context(), nc, 1, DefaultBytes, space))
		js := must.Value(jetstream.New(nc))(t)
		require.Equal(t, want, must.Value(js.Stream(t.Context(), Stream))(t).CachedInfo().Config.MaxBytes, limit)
	}
}
