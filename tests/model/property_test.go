package model

import (
	"cmp"
	"errors"
	"flag"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"quartet/tests/proc"
)

var (
	stepsFlag = flag.Int("steps", 0, "how many steps to take in all; 0: a number for this form of the test")
	seedFlag  = flag.Uint64("seed", 1, "the seed of the first history; the next ones count on")
)

// length is how many steps a history has: long enough for what needs many of
// them, short enough that records stay few and a failure can be shrunk.
const length = 250

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Whatever happens, and in whatever order planes receive the events, every response,
// readiness, ranking, focus, posture and decision equals the model's, every runnable item
// gets a turn, and a quiet system writes nothing (SPEC W4–W10, P1–P9, D1–D6, X1–X3, X6,
// X7, A5, A6).
func TestModel_RandomHistories(t *testing.T) {
	var names []string
	total := 0
	for name, o := range ops {
		names, total = append(names, name), total+o.weight
	}
	slices.Sort(names)
	most := cmp.Or(*stepsFlag, proc.Scale(min(15_000, steps), steps))
	if testing.Short() {
		most = min(most, 300)
	}
	began, happened := time.Now(), map[string]int{}
	var failed []history
	taken := 0
	var mu sync.Mutex
	var playing sync.WaitGroup
	todo := make(chan history)
	for range runtime.GOMAXPROCS(0) {
		playing.Go(func() {
			for h := range todo {
				at, r, err := play(home(t), h)
				mu.Lock()
				taken += r.taken
				if err != nil {
					failed = append(failed, h)
					t.Logf("seed %d, step %d: %v\n%s", h.seed, at, err, strings.Join(tail(r.log, 30), "\n"))
				}
				for what, n := range r.happened {
					happened[what] += n
				}
				mu.Unlock()
			}
		})
	}
	for seed := *seedFlag; ; seed++ {
		mu.Lock()
		enough := len(failed) > 0 || taken >= most
		mu.Unlock()
		if enough {
			break
		}
		todo <- newHistory(seed, length, names, total)
	}
	close(todo)
	playing.Wait()
	for _, h := range failed[:min(1, len(failed))] {
		last, why := shrink(t, &h, 30*time.Second)
		t.Fatalf("seed %d fails (%d agents, free scheduler: %t) after %d steps: %v\n%s", h.seed, h.agents, h.free,
			len(h.steps), why, strings.Join(last.log, "\n"))
	}
	t.Logf("%d steps in %s", taken, time.Since(began).Round(time.Millisecond))
	for _, what := range slices.Sorted(maps.Keys(happened)) {
		t.Logf("%8d %s", happened[what], what)
	}
}

// history is what happens in one world.
type history struct {
	seed   uint64
	agents int
	free   bool // the scheduler decides while the planes still tell each other
	steps  []step
}

func newHistory(seed uint64, n int, names []string, total int) history {
	rnd := rand.New(rand.NewPCG(seed, 1))
	h := history{seed: seed, agents: 1 + rnd.IntN(6)/2, free: rnd.IntN(4) == 0}
	for range n {
		h.steps = append(h.steps, draw(rnd, names, total))
	}
	return h
}

func tail(all []string, n int) []string { return all[max(0, len(all)-n):] }

// home returns where the plan files of a world go: in memory where there is some.
func home(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "model"); err == nil { //nolint:usetesting // TempDir is on disk
		return shm
	}
	return base
}

// shrink takes steps out of a failing history as long as it goes on to fail.
func shrink(t *testing.T, h *history, most time.Duration) (last *run, why error) {
	t.Helper()
	until := time.Now().Add(most)
	at := 0
	// What hangs on the order in which goroutines run does not fail each time.
	for n := 0; why == nil && n < 20; n++ {
		at, last, why = play(home(t), *h)
	}
	if why == nil {
		return last, errors.New("it did not fail again in 20 tries: it hangs on what runs first; see above")
	}
	h.steps = h.steps[:at]
	kind := func(err error) string {
		d := disagreement{}
		_ = errors.As(err, &d)
		return d.kind
	}
	wanted := kind(why)
	for size := len(h.steps) / 2; size > 0 && time.Now().Before(until); {
		smaller := false
		for from := 0; from+size <= len(h.steps) && time.Now().Before(until); {
			part := *h
			part.steps = slices.Concat(h.steps[:from], h.steps[from+size:])
			at, r, err := play(home(t), part)
			if err == nil || kind(err) != wanted {
				from += size
				continue
			}
			h.steps, last, why, smaller = part.steps[:at], r, err, true
		}
		if !smaller || size > len(h.steps) {
			size /= 2
		}
	}
	return last, why
}
