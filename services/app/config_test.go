package app

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// command-lease at, below and above its limits.
func TestX12_CommandLeaseLimits(t *testing.T) {
	for term, ok := range map[time.Duration]bool{
		0: true, 15*time.Second - 1: false, 15 * time.Second: true, 24 * time.Hour: true, 24*time.Hour + 1: false,
		-time.Second: false,
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
		{AuthAuto, "127.0.0.1:7480", false},
		{AuthAuto, "localhost:7480", false},
		{AuthAuto, "[::1]:7480", false},
		{AuthAuto, "0.0.0.0:7480", true},
		{AuthAuto, ":7480", true},
		{AuthAuto, "10.0.0.7:7480", true},
		{AuthOff, "0.0.0.0:7480", false},
		{AuthRequired, "127.0.0.1:7480", true},
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

// TestR12_SizesOfJournals tests the limits of what is kept of journals in one piece, and of EVENTS.
func TestR12_SizesOfJournals(t *testing.T) {
	for setting, limit := range map[string]struct {
		of      func(*Config) *int
		most    int
		without int // the value in place of 0
	}{
		"segment-mib":  {func(c *Config) *int { return &c.SegmentSize }, 4096, 64},
		"snapshot-mib": {func(c *Config) *int { return &c.SnapshotSize }, 4096, 16},
		"events-mib":   {func(c *Config) *int { return &c.EventsSize }, 1 << 20, 128},
	} {
		for value, want := range map[int]int{-1: 0, 0: limit.without, 1: 1, limit.most: limit.most, limit.most + 1: 0} {
			cfg := Config{DataDir: t.TempDir()}
			*limit.of(&cfg) = value
			err := cfg.Complete()
			if want == 0 {
				require.ErrorContains(t, err, fmt.Sprintf("%s is %d; it must be from 1 to %d", setting, value,
					limit.most))
				continue
			}
			require.NoError(t, err)
			require.Equal(t, want, *limit.of(&cfg))
		}
	}
}

// TestT6_DaysOfOutput tests the limits of how long the output of commands is kept.
func TestT6_DaysOfOutput(t *testing.T) {
	for days, ok := range map[int]bool{-1: false, 0: true, 1: true, 3650: true, 3651: false} {
		cfg := Config{DataDir: t.TempDir(), OutputDays: days}
		err := cfg.Complete()
		if !ok {
			require.ErrorContains(t, err, fmt.Sprintf("output-days is %d; it must be from 1 to 3650, or 0 to keep "+
				"the output of commands always", days))
			continue
		}
		require.NoError(t, err)
		require.Equal(t, time.Duration(days)*24*time.Hour, cfg.keepOutput())
	}
}
