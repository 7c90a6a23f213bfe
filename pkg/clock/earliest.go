package clock

import "time"

// Earliest returns the earliest time for which a key is set, and false if no
// key is.
func (d *Due) Earliest() (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.heap) == 0 {
		return time.Time{}, false
	}
	return d.heap[0].at, true
}
