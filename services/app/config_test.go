package app

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// command-lease at, below and above its limits.
func TestX12_CommandLeaseLimits(t *testing.T) {
	for term, ok := range map[time.Duration]bool{
		0: true, 15*time.Second - 1: false, 15 * time.Second: true, 24 * time.Hour: true, 24*time.Hour + 1: false, -time.Second: false,
	} {
		cfg := Config{DataDir: t.TempDir(), CommandLease: term}
		err := cfg.Complete()
		if ok {
			require.NoError(t, err, term)
			continue
		}
		require.ErrorContains(t, err, "command-lease is "+term.String())
	}
}

func TestI11_WhereMetricsDemandACredential(t *testing.T) {
	for _, c := range []struct {
		setting, addr string
		want          bool
	}{
		{AuthAuto, "127.0.0.1:7480", false}, {AuthAuto, "localhost:7480", false}, {AuthAuto, "[::1]:7480", false},
		{AuthAuto, "0.0.0.0:7480", true}, {AuthAuto, ":7480", true}, {AuthAuto, "10.0.0.7:7480", true},
		{AuthOff, "0.0.0.0:7480", false}, {AuthRequired, "127.0.0.1:7480", true},
	} {
		cfg := Config{MetricsAuth: c.setting, HTTPAddr: c.addr}
		require.NoError(t, cfg.completeMetricsAuth())
		require.Equal(t, c.want, cfg.gatewayMetricsAuth(), "%+v", c)
	}
	cfg := Config{}
	require.NoError(t, cfg.completeMetricsAuth())
	require.Equal(t, AuthAuto, cfg.MetricsAuth)
	cfg.MetricsAuth = "yes"
	require.ErrorContains(t, cfg.completeMetricsAuth(), `metrics-auth is "yes"`)
}
