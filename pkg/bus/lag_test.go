package bus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/bus"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
)

// TestX10_HowFarEventsIsBehind: what the publisher has not copied is counted, also while none runs, and nothing once it has.
func TestX10_HowFarEventsIsBehind(t *testing.T) {
	r := setup(t)
	lag := func(now time.Time) bus.Lag {
		l, err := bus.LagOf(t.Context(), r.js, "test", 0, now)
		require.NoError(t, err)
		return l
	}
	r.put(t, "keeper", "v")
	got := lag(time.Now().Add(time.Hour))
	require.EqualValues(t, 2, got.Frames, "partition_opened and an event, and there is no position")
	require.InDelta(t, time.Hour.Seconds(), got.Behind.Seconds(), 60)
	require.Zero(t, lag(time.Now().Add(8*24*time.Hour)), "older than what is copied")

	pub := r.start(t)
	require.Eventually(t, func() bool { return lag(time.Now()) == bus.Lag{} }, 20*time.Second, 10*time.Millisecond)
	pub.Stop()
	for range 3 {
		r.put(t, "keeper", "v")
	}
	got = lag(time.Now().Add(time.Minute))
	require.EqualValues(t, 3, got.Frames)
	require.InDelta(t, 60, got.Behind.Seconds(), 30)
	pub = r.start(t)
	require.Eventually(t, func() bool { return lag(time.Now()) == bus.Lag{} }, 20*time.Second, 10*time.Millisecond)
	pub.Stop()

	log, err := jetlog.New(r.nc, "test", 0)
	require.NoError(t, err)
	_, last, err := log.Tail(t.Context())
	require.NoError(t, err)
	_, err = log.Append(t.Context(), last, framelog.Frame{ID: "fence", Generation: 1})
	require.NoError(t, err)
	require.Zero(t, lag(time.Now().Add(time.Hour)), "a fence has nothing to copy")
	_, err = bus.LagOf(t.Context(), r.js, "nowhere", 0, time.Now())
	require.ErrorContains(t, err, "how far EVENTS is behind the journal of nowhere/0")
}
