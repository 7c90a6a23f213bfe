package datadir

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/journal/framelog"
)

// TestX16_WhenItIsFull: after ten minutes a store that grows says when it will be full, at the rate of the last six
// hours.
func TestX16_WhenItIsFull(t *testing.T) {
	reg, state := prometheus.NewRegistry(), framelog.RoomState{Limit: 1000 * mib}
	measured := func(context.Context) (framelog.RoomState, error) { return state, nil }
	g := NewFillGauge(&framelog.Room{}, measured, zap.NewNop(), reg)
	began := time.Unix(1_700_000_000, 0)
	var gauge float64
	measure := func(after time.Duration, used int64) time.Duration {
		g.now = func() time.Time { return began.Add(after) }
		state.Used = used
		g.Measure(t.Context())
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() != "quartet_store_full_seconds" {
				continue
			}
			value := f.GetMetric()[0].GetGauge().GetValue()
			gauge = value
			if math.IsInf(value, 1) {
				value = 0
			}
			require.InDelta(t, g.FullIn().Seconds(), value, 1)
		}
		return g.FullIn()
	}
	require.Zero(t, measure(0, 100*mib))
	require.Zero(t, measure(trendFrom-time.Second, 109*mib), "not watched for long enough")
	require.Equal(t, 84*trendFrom, measure(trendFrom, 110*mib).Round(time.Second), "50 MiB are the reserve")
	require.Zero(t, measure(trendFrom+time.Second, 100*mib), "it does not grow")
	require.Zero(t, measure(trendFrom+2*time.Second, 90*mib), "it shrinks")
	require.Zero(t, measure(2*trendFrom, 100*mib+1), "not in a hundred years")
	state.Limit = 0
	require.Zero(t, measure(3*trendFrom, 200*mib), "its limit is not known")
	state.Limit = 100 * mib
	require.Positive(t, gauge, "it is not full")
	require.Zero(t, measure(4*trendFrom, 200*mib), "it is full")
	require.Zero(t, gauge, "so that an alert that compares goes on")
	state.Limit = 120 * mib // 8 of them are the reserve
	require.Zero(t, measure(4*trendFrom+time.Second, 112*mib), "only the reserve is left")
	require.Zero(t, gauge)
	require.Positive(t, measure(4*trendFrom+2*time.Second, 112*mib-1))
	require.Positive(t, gauge)
	g.room.SetRefusing(true)
	require.Zero(t, measure(4*trendFrom+3*time.Second, 111*mib), "the broker refuses more")
	require.Zero(t, gauge)
	g.room.SetRefusing(false)
	state.Limit = 1000 * mib
	for minute := range 2 * trendSamples { // it stops to grow
		measure(time.Hour+time.Duration(minute)*trendEach, 300*mib)
	}
	require.Len(t, g.trend.samples, trendSamples)
	require.Zero(t, g.FullIn(), "what it did six hours ago does not count")
	require.Positive(t, measure(time.Hour+2*trendSamples*trendEach, 301*mib))
}
