package varz_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/natsd/varz"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { http.DefaultClient.CloseIdleConnections() }))
}

// monitored starts a real server with a monitoring port.
func monitored(t *testing.T, set func(*server.Options)) string {
	opts := &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, HTTPHost: "127.0.0.1",
		HTTPPort: server.RANDOM_PORT, ServerName: "stock", NoLog: true, NoSigs: true, StoreDir: t.TempDir(),
	}
	set(opts)
	srv, err := server.NewServer(opts)
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	require.True(t, srv.ReadyForConnections(10*time.Second))
	return "http://" + srv.MonitorAddr().String()
}

// TestR5_SettingsOfServers: real servers tell what they lack, by the name of the setting.
func TestR5_SettingsOfServers(t *testing.T) {
	const least = 6_356_992
	stock := monitored(t, func(o *server.Options) { o.JetStream = true })
	unknown, wrong := varz.Verify(t.Context(), stock, least)
	require.Empty(t, unknown)
	require.ErrorContains(t, wrong, "the NATS server stock ("+stock+") syncs its files every 2m0s")
	require.ErrorContains(t, wrong, "set sync_interval: always")
	require.ErrorContains(t, wrong, "set max_payload: 8MB")

	plain := monitored(t, func(*server.Options) {})
	_, wrong = varz.Verify(t.Context(), plain, 1)
	require.ErrorContains(t, wrong, "has no JetStream")

	right := monitored(t, func(o *server.Options) { o.JetStream, o.SyncAlways, o.MaxPayload = true, true, 8<<20 })
	unknown, wrong = varz.Verify(t.Context(), right+"/", least)
	require.Empty(t, unknown)
	require.NoError(t, wrong)

	// One of several is enough to be refused; one that cannot be asked is named.
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	unknown, wrong = varz.Verify(t.Context(), fmt.Sprintf("%s, %s,%s,http://127.0.0.1:1", right, stock, other.URL),
		least)
	require.Len(t, unknown, 2)
	require.Contains(t, unknown[0], other.URL+" are not known: it answers with status 404")
	require.ErrorContains(t, wrong, "stock")
}

func TestMonitorURLs(t *testing.T) {
	require.NoError(t, varz.CheckURLs(""))
	require.NoError(t, varz.CheckURLs("http://nats-1:8222, https://nats-2:8222/"))
	for _, bad := range []string{"nats-1:8222", "nats://nats-1:4222", "http://"} {
		require.ErrorContains(t, varz.CheckURLs(bad), "nats-monitor-url", bad)
	}
}
