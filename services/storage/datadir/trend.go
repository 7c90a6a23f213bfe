package datadir

import "time"

const (
	// trendEach is the time between two samples of a trend, of which there are trendSamples at most.
	trendEach    = time.Minute
	trendSamples = 360
	// trendFrom is how long a trend must have been watched before it says anything.
	trendFrom = 10 * time.Minute
)

// trend is how the use of the store has grown. Its zero value knows nothing.
type trend struct {
	samples []sample // oldest first
}

// sample is how much was in use at a time.
type sample struct {
	at   time.Time
	used int64
}

// add adds a sample, unless the newest one is less than trendEach old. It drops the oldest of more than trendSamples.
func (t *trend) add(now time.Time, used int64) {
	if n := len(t.samples); n > 0 && now.Sub(t.samples[n-1].at) < trendEach {
		return
	}
	if len(t.samples) == trendSamples {
		t.samples = t.samples[:copy(t.samples, t.samples[1:])]
	}
	t.samples = append(t.samples, sample{now, used})
}

// full returns how long it will take until free bytes are used up. It returns 0 if that is not known or not to be
// expected, and also if free is 0 or negative.
func (t *trend) full(now time.Time, used, free int64) time.Duration {
	if len(t.samples) == 0 {
		return 0
	}
	watched, grown := now.Sub(t.samples[0].at), used-t.samples[0].used
	if watched < trendFrom || grown <= 0 || free < 0 {
		return 0
	}
	const most = 100 * 365 * 24 * time.Hour
	if in := float64(watched) * (float64(free) / float64(grown)); in < float64(most) {
		return time.Duration(in)
	}
	return 0
}
