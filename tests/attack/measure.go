package attack

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"
)

// Usage is what a process took while it was measured.
type Usage struct {
	Memory int           // bytes, the most
	CPU    time.Duration // of all processors
	// Calls is how much processor time the process used while each of the measured calls was in progress: what a
	// caller had to wait for the process itself, whatever else the machine does.
	Calls Spread
}

// Spread has latencies.
type Spread struct {
	N                  int
	P50, P90, P95, P99 time.Duration
}

// String returns the figures for people.
func (s Spread) String() string {
	return fmt.Sprintf("n=%d p50=%s p90=%s p95=%s p99=%s", s.N, s.P50, s.P90, s.P95, s.P99)
}

// Measure calls try once per period for some time, and returns how long the calls took and what the process with the
// number pid used meanwhile. It returns the first error of try.
func Measure(ctx context.Context, pid int, length, period time.Duration, try func(ctx context.Context) error) (Usage,
	Spread, error,
) {
	every := time.NewTicker(period)
	defer every.Stop()
	var took, busy []time.Duration
	var used Usage
	_, began, err := Cost(pid)
	if err != nil {
		return used, Spread{}, err
	}
	for end := time.Now().Add(length); time.Now().Before(end); {
		select {
		case <-every.C:
		case <-ctx.Done():
			return used, Spread{}, ctx.Err()
		}
		_, before, err := Cost(pid)
		if err != nil {
			return used, Spread{}, err
		}
		at := time.Now()
		if err := try(ctx); err != nil {
			return used, Spread{}, err
		}
		took = append(took, time.Since(at))
		memory, cpu, err := Cost(pid)
		if err != nil {
			return used, Spread{}, err
		}
		busy = append(busy, cpu-before)
		used.Memory, used.CPU = max(used.Memory, memory), cpu-began
	}
	used.Calls = spread(busy)
	return used, spread(took), nil
}

// spread returns the spread of latencies.
func spread(took []time.Duration) Spread {
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[len(took)*percent/100].Round(time.Microsecond) }
	return Spread{N: len(took), P50: at(50), P90: at(90), P95: at(95), P99: at(99)}
}

// OnDisk returns how many bytes the files below a directory have.
func OnDisk(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // it was removed meanwhile
		}
		if st, err := d.Info(); err == nil {
			bytes += st.Size()
		}
		return nil
	})
	return bytes, err
}
