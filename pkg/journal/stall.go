package journal

import (
	"sync"
	"time"
)

// stallThreshold is the shortest write that counts as a stall; anything faster is a slow disk.
const stallThreshold = time.Second

// stallMeter measures stalls. A write that has lasted for stallThreshold or longer is a stall, with its whole duration.
// The caller supplies the time, which must not go back. The zero value is ready to use, and all methods are safe for
// concurrent use.
type stallMeter struct {
	mu    sync.Mutex
	since time.Time // start of the current write; zero if there is none
	total time.Duration
}

// Begin records that a write started. It has no effect while an earlier one has not ended.
func (m *stallMeter) Begin(now time.Time) {
	m.mu.Lock()
	if m.since.IsZero() {
		m.since = now
	}
	m.mu.Unlock()
}

// End records that the current write has ended, whether it succeeded or was refused.
func (m *stallMeter) End(now time.Time) {
	m.mu.Lock()
	m.total += m.length(now)
	m.since = time.Time{}
	m.mu.Unlock()
}

// length returns the duration of the current stall, 0 if there is none. m.mu must be held.
func (m *stallMeter) length(now time.Time) time.Duration {
	if m.since.IsZero() {
		return 0
	}
	if d := now.Sub(m.since); d >= stallThreshold {
		return d
	}
	return 0
}

// Current returns the duration of the current stall, 0 if there is none.
func (m *stallMeter) Current(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.length(now)
}

// Total returns the sum of all stalls, including the current one.
func (m *stallMeter) Total(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total + m.length(now)
}
