// Package yield lets long computations give up the processor for others. The Go runtime interrupts a goroutine only
// after 10 ms. It polls the network only when it has nothing else to run. So a goroutine that calls only
// runtime.Gosched again and again delays the requests that arrive.
package yield

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// slice is the time after which one of the computations of the process pauses, while the process is short of
	// processor time.
	slice = 500 * time.Microsecond
	// pause is how long it pauses. If there is nothing else to run, the runtime extends it to a millisecond.
	pause = 50 * time.Microsecond
)

var (
	short  atomic.Bool
	paused atomic.Int64 // when a computation paused last, in nanoseconds since start
	start  = time.Now()
)

// Short tells Now whether the process is short of processor time. At first it is not.
func Short(is bool) { short.Store(is) }

// Now lets other goroutines run. A computation that may take longer than a millisecond should call it regularly.
// While the process is short of processor time, it sleeps if no call has slept for slice, so that the runtime polls
// the network.
func Now() {
	if !short.Load() {
		runtime.Gosched()
		return
	}
	now, last := time.Since(start).Nanoseconds(), paused.Load()
	if now-last < slice.Nanoseconds() || !paused.CompareAndSwap(last, now) {
		runtime.Gosched()
		return
	}
	<-time.After(pause)
	paused.Store(time.Since(start).Nanoseconds())
}
