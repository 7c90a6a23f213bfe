package admission

import "time"

const (
	// probes is how many goroutines Delay observes, one after the other.
	probes = 3
	// probeTime is how long each of them sleeps. The runtime does not wake goroutines more exactly than that.
	probeTime = time.Millisecond
)

// Delay returns how late the latest of a few goroutines ran that slept: what a request waits for a processor each
// time that the process has to react to something outside of it, such as the network or the disk. It takes a few
// milliseconds.
//
// How long all goroutines wait says less: most of them are woken by another one that stops immediately, and wait
// for no time at all.
//
// It returns as soon as one was later than enough.
func Delay(enough time.Duration) time.Duration {
	var latest time.Duration
	for n := 0; n < probes && latest <= enough; n++ {
		due := time.Now().Add(probeTime)
		<-time.After(probeTime)
		latest = max(latest, time.Since(due))
	}
	return latest
}
