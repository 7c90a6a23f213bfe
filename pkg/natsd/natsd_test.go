package natsd_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/must"
	"quartet/pkg/natsd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, port int) *natsd.Server {
	t.Helper()
	s := must.Value(natsd.Start(natsd.Config{StoreDir: t.TempDir(), Port: port}))(t)
	t.Cleanup(s.Stop)
	return s
}

func TestInProcessOnly(t *testing.T) {
	s := start(t, natsd.InProcess)
	require.Empty(t, s.URL())
	nc := must.Value(s.Connect("test"))(t)
	defer nc.Close()
	require.EqualValues(t, natsd.MaxPayload, nc.MaxPayload())
	s.Stop()
	s.Stop()
	require.Error(t, s.Restart())
}

func TestListensOnLoopback(t *testing.T) {
	s := start(t, 0)
	require.Contains(t, s.URL(), "127.0.0.1")
	nc := must.Value(natsd.Remote{URL: s.URL()}.Connect(t.Context(), "test", nil))(t)
	nc.Close()
	s.Stop()
	require.Error(t, must.Err(natsd.Remote{URL: "nats://127.0.0.1:1"}.Connect(t.Context(), "test", nil)))
}

func TestNeedsAStore(t *testing.T) {
	require.Error(t, must.Err(natsd.Start(natsd.Config{})))
}

// A restart keeps what was stored, and connections come back.
func TestRestart(t *testing.T) {
	s := start(t, natsd.InProcess)
	nc, err := s.Connect("test")
	require.NoError(t, err)
	defer nc.Close()
	js := must.Value(jetstream.New(nc))(t)
	must.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}))(t)
	must.Value(js.Publish(t.Context(), "s", []byte("kept")))(t)
	require.NoError(t, s.Restart())
	// A connection that has not yet noticed loses what it sends, so the first
	// questions may go unanswered.
	var str jetstream.Stream
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		str, err = js.Stream(ctx, "S")
		return err == nil
	}, time.Minute, 5*time.Millisecond)
	require.Equal(t, "kept", string(must.Value(str.GetMsg(t.Context(), 1))(t).Data))
}
