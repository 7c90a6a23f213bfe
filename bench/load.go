package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// stats are the measurements of one figure.
type stats struct {
	perSecond float64
	// rates has the operations per second of each slice.
	rates    []float64
	p50, p99 time.Duration
	// cpu is the processor time of one operation, of client and server together. It is the figure
	// to compare on a machine that is shared with others.
	cpu time.Duration
}

// turnsEach is in how many slices each of the compared figures is measured. The speed of a shared
// machine can change by a third within a minute, so one slice of each figure is measured in each
// round, and a ratio of two figures is the median of the ratios of the rounds.
const turnsEach = 9

// figure is something that is measured.
type figure struct {
	name, note string
	op         func(ctx context.Context, caller, i int) error
	// turn, if it is not nil, measures one slice in its own way, such as in another process. op is then not used.
	turn func(ctx context.Context, callers int, span time.Duration) (turn, error)
	kind string // the name of the figure in bench/rivals, if it is measured there
}

// alternate measures figures with n callers alternately: each for span, in turnsEach slices.
func alternate(ctx context.Context, n int, span time.Duration, figures []figure) ([]row, error) {
	turns := make([][]turn, len(figures))
	for range turnsEach {
		for f, fig := range figures {
			measure := fig.turn
			if measure == nil {
				measure = func(ctx context.Context, n int, span time.Duration) (turn, error) {
					return load(ctx, n, span, len(turns[f])<<32, fig.op)
				}
			}
			t, err := measure(ctx, n, span/turnsEach)
			if err != nil {
				return nil, fmt.Errorf("%s, %d callers: %w", fig.name, n, err)
			}
			turns[f] = append(turns[f], t)
		}
	}
	var rows []row
	for f, fig := range figures {
		s, err := summarise(turns[f])
		if err != nil {
			return nil, fmt.Errorf("%s, %d callers: %w", fig.name, n, err)
		}
		rows = append(rows, row{name: fig.name, callers: n, stats: s, note: fig.note})
	}
	return rows, nil
}

// turn is the result of one slice.
type turn struct {
	took []time.Duration // how long each operation took, if that is known
	done int             // how many operations were done
	span time.Duration
	cpu  time.Duration // processor time of this process
}

// load runs op from n concurrent callers, each of which waits for its response before the next
// call, and returns the result for the calls that returned after the warm-up. The operations of each
// caller are numbered from first on.
func load(ctx context.Context, n int, span time.Duration, first int,
	op func(ctx context.Context, caller, i int) error,
) (turn, error) {
	rest(ctx)
	warmUp := max(span/4, 100*time.Millisecond)
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
			lat := make([]time.Duration, 0, 1<<12)
			for i := first; ; i++ {
				at := time.Now()
				if at.After(end) {
					break
				}
				if err := op(ctx, c, i); err != nil {
					errs[c] = err
					return
				}
				if now := time.Now(); now.After(begin) && now.Before(end) {
					lat = append(lat, now.Sub(at))
				}
			}
			took[c] = lat
		})
	}
	all.Wait()
	t := turn{took: slices.Concat(took...), span: span, cpu: cpuTime() - time.Duration(before.Load())}
	t.done = len(t.took)
	return t, errors.Join(errs...)
}

func summarise(turns []turn) (stats, error) {
	var all []time.Duration
	var span, cpu time.Duration
	var rates []float64
	done := 0
	for _, t := range turns {
		rates = append(rates, float64(t.done)/t.span.Seconds())
		done += t.done
		all, span, cpu = append(all, t.took...), span+t.span, cpu+t.cpu
	}
	if done == 0 {
		return stats{}, errors.New("nothing was measured")
	}
	s := stats{perSecond: float64(done) / span.Seconds(), rates: rates, cpu: cpu / time.Duration(done)}
	if len(all) > 0 {
		slices.Sort(all)
		s.p50, s.p99 = all[len(all)/2], all[len(all)*99/100]
	}
	return s, nil
}

// rest waits, at most 20 s, until the process has little left to do, so that the work that one
// figure leaves (events to copy, memory to collect) does not slow the next one.
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

// cpuTime returns the processor time that the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ratio returns the throughput of s divided by that of z: the median of the ratios of the rounds.
func (s stats) ratio(z stats) float64 {
	var of []float64
	for i := range min(len(s.rates), len(z.rates)) {
		of = append(of, s.rates[i]/z.rates[i])
	}
	if len(of) == 0 {
		return s.perSecond / z.perSecond
	}
	slices.Sort(of)
	return of[len(of)/2]
}
