package tests

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/tests/proc"
)

// TestX15_AProcessWaitsForNATS starts a server before the NATS server that it needs.
func TestX15_AProcessWaitsForNATS(t *testing.T) {
	proc.Long(t)
	nats, url := natsProcess(t)
	srv := must.Value(proc.NewQuartet(binary(t), filepath.Join(t.TempDir(), "data"), url))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- srv.Start(ctx) }()
	t.Cleanup(func() { _ = srv.Kill() })
	require.Eventually(t, func() bool { return strings.Contains(logOf(t, srv), "waiting for NATS") }, time.Minute,
		20*time.Millisecond)
	select {
	case err := <-started:
		require.Fail(t, "it did not wait", "%v", err)
	case <-time.After(3 * time.Second):
	}
	require.NoError(t, nats.Start(ctx))
	t.Cleanup(func() { _ = nats.Kill() })
	require.NoError(t, <-started)
	require.Equal(t, 1, strings.Count(logOf(t, srv), "waiting for NATS"))
}

// TestR5_AServerWithSmallMessagesIsRefused: a stock NATS server allows 1 MB, and a journal has larger frames.
func TestR5_AServerWithSmallMessagesIsRefused(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	nats, url := natsProcess(t)
	conf := nats.Args[1]
	text := must.Value(os.ReadFile(conf))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for payload, ready := range map[string]bool{"1048576": false, "6356991": false, "6356992": true, "8388608": true} {
		require.NoError(t, os.WriteFile(conf, []byte(strings.Replace(string(text), "8388608", payload, 1)), 0o600))
		require.NoError(t, nats.Start(ctx))
		srv := must.Value(proc.NewQuartet(binary(t), filepath.Join(t.TempDir(), "data"), url))(t)
		err := srv.Start(ctx)
		if ready {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "the NATS server allows messages of "+payload+
				" bytes, and a journal needs 6356992: set max_payload: 8MB")
		}
		require.NoError(t, srv.Kill())
		require.NoError(t, nats.Kill())
	}
}

// natsProcess returns a nats-server that is not started, and its address.
func natsProcess(t *testing.T) (*proc.Process, string) {
	t.Helper()
	bin := must.Value(proc.Build(t.TempDir(), "github.com/nats-io/nats-server/v2", "nats-server"))(t)
	nats, url, err := proc.NewNATS(bin, filepath.Join(t.TempDir(), "nats"))
	require.NoError(t, err)
	return nats, url
}

// logOf returns what a server wrote to its log.
func logOf(t *testing.T, srv *proc.Quartet) string {
	t.Helper()
	b, err := os.ReadFile(srv.Log)
	if err != nil {
		return ""
	}
	return string(b)
}
