package bus_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/bus"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
)

// TestX10_HowFarEventsIsBehind: what the publisher has not copied is counted, also while none runs, and nothing once it
// has.
func TestX10_HowFarEventsIsBehind(t *testing.T) {
	r := setup(t)
	lag := func(now time.Time) bus.Lag {
		return must.Value(bus.LagOf(t.Context(), r.js, "test", 0, now))(t)
	}
	r.put(t, "keeper", "v")
	got := lag(time.Now().Add(time.Hour))
	require.EqualValues(t, 2, got.Frames, "partition_opened and an event, and there is no position")
	require.InDelta(t, time.Hour.Seconds(), got.Behind.Seconds(), 60)
	require.Zero(t, lag(time.Now().Add(8*24*time.Hour)), "older than what is copied")

	pub := r.start(t)
	require.Eventually(t, func() bool { return lag(time.Now()) == bus.Lag{} }, time.Minute, 10*time.Millisecond)
	pub.Stop()
	for range 3 {
		r.put(t, "keeper", "v")
	}
	got = lag(time.Now().Add(time.Minute))
	require.EqualValues(t, 3, got.Frames)
	require.InDelta(t, 60, got.Behind.Seconds(), 30)
	pub = r.start(t)
	require.Eventually(t, func() bool { return lag(time.Now()) == bus.Lag{} }, time.Minute, 10*time.Millisecond)
	pub.Stop()

	log := must.Value(jetlog.New(r.nc, "test", 0))(t)
	_, last, err := log.Tail(t.Context())
	require.NoError(t, err)
	must.Value(log.Append(t.Context(), last, framelog.Frame{ID: "fence", Generation: 1}))(t)
	require.Zero(t, lag(time.Now().Add(time.Hour)), "a fence has nothing to copy")
	_, err = bus.LagOf(t.Context(), r.js, "nowhere", 0, time.Now())
	require.ErrorContains(t, err, "how far EVENTS is behind the journal of nowhere/0")
}

// TestX10_EventsOfAQuietJournal: the position of a journal that is seldom written leaves EVENTS with the events of busy
// ones. History that is kept for longer than EVENTS keeps events is removed all the same: without a position nobody
// copies what is so old.
func TestX10_EventsOfAQuietJournal(t *testing.T) {
	r := setup(t)
	r.put(t, "keeper", "v")
	through := func(old time.Duration) (uint64, error) {
		return bus.CopiedThrough(t.Context(), r.nc, "test", 0, old)
	}
	pub := r.start(t)
	require.Eventually(t, func() bool { n, err := through(48 * time.Hour); return err == nil && n < math.MaxUint64 },
		time.Minute, 10*time.Millisecond)
	known := must.Value(through(30 * 24 * time.Hour))(t)
	require.EqualValues(t, 2, known, "a position that is there counts, however old it is")
	pub.Stop()

	require.NoError(t, must.Value(r.js.Stream(t.Context(), bus.Stream))(t).Purge(t.Context()))
	must.Fail(through(48*time.Hour))(t, "how far EVENTS has the journal of test/0 is not known")
	known = must.Value(through(7 * 24 * time.Hour))(t)
	require.Equal(t, uint64(math.MaxUint64), known)
}
