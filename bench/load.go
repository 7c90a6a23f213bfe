package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// stats of one figure.
type stats struct {
	perSecond float64
	p50, p99  time.Duration
	// cpu is what the process spent on one of them, client and server. Where
	// others use the machine too it is the figure to compare.
	cpu time.Duration
}

const warmUp = time.Second

// load runs op from n callers at once, each waiting for its answer before the
// next, and gives what was answered after the warm-up.
func load(ctx context.Context, n int, span time.Duration, op func(ctx context.Context, caller, i int) error) (stats, error) {
	rest(ctx)
	ctx, cancel := context.WithTimeout(ctx, warmUp+span+30*time.Second)
	defer cancel()
	begin := time.Now().Add(warmUp)
	end := begin.Add(span)
	var before atomic.Int64
	defer time.AfterFunc(warmUp, func() { before.Store(int64(cpuTime())) }).Stop()
	took := make([][]time.Duration, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	for c := range n {
		all.Go(func() {
			lat := make([]time.Duration, 0, 1<<16)
			for i := 0; ; i++ {
				at := time.Now()
				if at.After(end) {
					break
				}
				if err := op(ctx, c, i); err != nil {
					errs[c] = err
					return
				}
				if now := time.Now(); at.After(begin) && now.Before(end) {
					lat = append(lat, now.Sub(at))
				}
			}
			took[c] = lat
		})
	}
	all.Wait()
	spent := cpuTime() - time.Duration(before.Load())
	for _, err := range errs {
		if err != nil {
			return stats{}, err
		}
	}
	s, err := summarise(slices.Concat(took...), span)
	if ops := s.perSecond * span.Seconds(); err == nil && ops > 0 {
		s.cpu = time.Duration(float64(spent) / ops)
	}
	return s, err
}

func summarise(all []time.Duration, span time.Duration) (stats, error) {
	if len(all) == 0 {
		return stats{}, fmt.Errorf("nothing was measured")
	}
	slices.Sort(all)
	return stats{
		perSecond: float64(len(all)) / span.Seconds(),
		p50:       all[len(all)/2],
		p99:       all[len(all)*99/100],
	}, nil
}

// rest waits until the process has little left to do, at most 20 s: what one
// figure leaves behind (events to copy, memory to collect) is not the next one's.
func rest(ctx context.Context) {
	const window, calm = 200 * time.Millisecond, 20 * time.Millisecond
	for range 100 {
		before := cpuTime()
		select {
		case <-ctx.Done():
			return
		case <-time.After(window):
		}
		if cpuTime()-before < calm {
			return
		}
	}
}

// cpuTime is what the process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
