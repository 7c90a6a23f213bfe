// Package yield lets long computations make way for others. The runtime interrupts a goroutine after 10 ms only, and
// asks which connections have received something only when it has nothing else to run, so that a goroutine that
// gives way with runtime.Gosched keeps requests from being noticed.
package yield

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// slice is how long computations run, all together, before one of them pauses while the process is short of
	// processor time.
	slice = 500 * time.Microsecond
	// pause is how long it does. The runtime makes a millisecond of it if there is nothing else to run.
	pause = 50 * time.Microsecond
)

var (
	short  atomic.Bool
	paused atomic.Int64 // when a computation has paused last, since start
	start  = time.Now()
)

// Short says whether the process is short of processor time.
func Short(is bool) { short.Store(is) }

// Now lets other goroutines run. Computations that may take longer than a millisecond call it again and again.
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
