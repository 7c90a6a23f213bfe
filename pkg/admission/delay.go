package admission

import "time"

const (
	// probes is how many goroutines Delay observes, one after the other.
	probes = 3
	// probeTime is how long each of them sleeps. The runtime wakes goroutines with about that precision.
	probeTime = time.Millisecond
)

// Delay sleeps a few times, and returns the largest delay of a wake-up. That is about how long a request waits for a
// processor each time that the process reacts to something outside of it, such as the network or the disk. It takes a
// few milliseconds, and returns as soon as one wake-up was delayed by more than enough.
//
// What the runtime measures of all goroutines (/sched/latencies:seconds) says less: most are woken by another
// goroutine that stops immediately, and do not wait at all.
func Delay(enough time.Duration) time.Duration {
	var latest time.Duration
	for n := 0; n < probes && latest <= enough; n++ {
		due := time.Now().Add(probeTime)
		<-time.After(probeTime)
		latest = max(latest, time.Since(due))
	}
	return latest
}
