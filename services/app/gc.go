package app

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"quartet/pkg/life"
)

// The cost of a garbage collection is proportional to the live heap; the memory that it
// frees is what was allocated since the one before. Rare collections give a small
// installation a tenth more throughput, but with 100 000 agents the same percentage
// needed 5 GB instead of 1. So the percentage is chosen such that the allocations between
// two collections (the headroom) are small while the process is idle, and those of
// gcInterval while it is busy: with 125 000 live items, mutations at full speed then take
// a sixth less processor time. Of the 110 MB that are live in a small installation at full speed, 90 are
// buffers of the NATS server, which have no pointers and cost a collection nothing: gcBusyPercent keeps
// the garbage from being four times of these as well. Of what a caller without a credential can make a process
// occupy, most is this headroom, whose garbage is collected later than it could be.
const (
	gcMaxPercent   = 400
	gcBusyPercent  = 200 // the maximum percentage where the headroom is more than gcBusyHeadroom
	gcMinPercent   = 50
	gcHeadroom     = 32 << 20 // bytes allocated between two collections of an idle process
	gcBusyHeadroom = 64 << 20 // the same of a process that allocates as much in gcInterval, if its live heap is small
	gcMaxHeadroom  = 1 << 30  // the same of a busy process
	gcInterval     = 4 * time.Second
	gcPeriod       = time.Second
	// A process returns unused memory to the system when it was idle for idlePeriods
	// periods: when it allocated less than idleRate bytes per second.
	idleRate    = 32 << 20
	idlePeriods = 5
)

// AdjustGC adjusts the garbage collector's percentage to the live heap and the rate of
// allocations until ctx ends, for a process that may use most bytes of memory; 0: it is not known how many. It does
// nothing if the operator set GOGC.
func AdjustGC(ctx context.Context, most uint64) {
	if os.Getenv("GOGC") != "" {
		return
	}
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	m := gcMonitor{headroom: gcMaxHeadroom}
	if most > 0 {
		m.headroom = min(m.headroom, most/4)
	}
	life.Every(ctx, gcPeriod, func(context.Context) {
		metrics.Read(sample)
		percent, release := m.update(sample[0].Value.Uint64(), sample[1].Value.Uint64())
		if percent != 0 {
			debug.SetGCPercent(percent)
		}
		if release {
			debug.FreeOSMemory()
		}
	})
}

// gcMonitor decides about the garbage collector; it holds what it remembers between two periods.
type gcMonitor struct {
	headroom  uint64 // the most of a busy process
	allocated uint64 // bytes since the process started
	// allocated bytes per second; it falls by at most half per period, so that a short pause counts as busy
	rate    uint64
	idle    int // consecutive idle periods
	percent int // the percentage that was set last
}

// update is called once per gcPeriod with the live heap and the bytes allocated since the
// process started. It returns the percentage to set, 0 if it need not change, and whether
// unused memory should be returned to the system.
func (m *gcMonitor) update(live, allocated uint64) (percent int, release bool) {
	m.rate = max(m.rate/2, uint64(float64(allocated-m.allocated)/gcPeriod.Seconds()))
	m.allocated = allocated
	m.idle++
	if m.rate > idleRate {
		m.idle = 0
	}
	p := gcPercentFor(live, m.rate, m.headroom)
	// Setting it stops the world for a moment, so small changes are ignored.
	if p >= m.percent*9/10 && p <= m.percent*11/10 {
		p = 0
	} else {
		m.percent = p
	}
	return p, m.idle == idlePeriods
}

// gcPercentFor returns the percentage for a live heap in bytes and a rate of allocations in bytes per
// second, and at most so much headroom.
func gcPercentFor(live, rate, most uint64) int {
	headroom := max(uint64(float64(rate)*gcInterval.Seconds()), gcHeadroom)
	headroom = min(headroom, most, max(live*gcBusyPercent/100, gcBusyHeadroom))
	return int(min(max(headroom*100/max(live, 1), gcMinPercent), gcMaxPercent))
}
