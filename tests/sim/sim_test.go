package sim

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/tests/proc"
)

var (
	seedFlag  = flag.Uint64("seed", 1, "the first seed")
	seedsFlag = flag.Int("seeds", 0, "how many seeds to run in this process; 0: a number for this form of the test, "+
		"in several processes")
	stepsFlag = flag.Int("steps", 0, "after how many steps no other seed is begun in this process")
	totalFlag = flag.Int("total", 0, "after how many steps in all processes no other seed is begun; 0: no limit")
	showFlag  = flag.Bool("show", false, "print the steps of each run")
)

// base is where the homes of agents are. Its name is in journals, so it is the same in each process.
var base = "/proc/self/cwd"

// root is the repository.
var root string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("/dev/shm", "quartet-sim")
	if err != nil {
		dir, err = os.MkdirTemp("", "quartet-sim")
	}
	if err == nil {
		if root, err = filepath.Abs(filepath.Join("..", "..")); err == nil {
			err = os.Chdir(dir)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if _, err := os.Stat(base); err != nil {
		base = dir
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// seedsOf returns how many seeds this form of the test runs. 1 000 take four minutes of two processors.
func seedsOf() int {
	switch {
	case testing.Short():
		return 10
	case race:
		return 40
	}
	return proc.Scale(60, 1000)
}

// TestSim runs seeds until an oracle objects to one. A process simulates one world at a time, since random numbers are
// a process's, so the seeds are shared out over as many processes as there are processors.
func TestSim(t *testing.T) {
	if *seedsFlag > 0 || *stepsFlag > 0 {
		runSeeds(t)
		return
	}
	processes, n := runtime.GOMAXPROCS(0), seedsOf()
	if *totalFlag > 0 {
		n = 1 << 20
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	var mu sync.Mutex
	for i := range processes {
		running.Go(func() {
			first, count := *seedFlag+uint64(i*n/processes), (i+1)*n/processes-i*n/processes

			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", "^TestSim$", "-test.v", "-test.timeout", "0",
				"-seed", fmt.Sprint(first), "-seeds", fmt.Sprint(count), "-steps", fmt.Sprint(*totalFlag/processes))
			cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=400", "GODEBUG=asyncpreemptoff=1")
			cmd.Dir = filepath.Join(root, "tests", "sim")
			out, err := cmd.CombinedOutput()
			mu.Lock()
			defer mu.Unlock()
			if err != nil && ctx.Err() == nil {
				stop()
				t.Errorf("%s", out[max(0, len(out)-12000):])
				return
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			for _, line := range lines {
				if strings.Contains(line, "together: ") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
	running.Wait()
}

// runSeeds runs seeds in this process.
func runSeeds(t *testing.T) {
	began, steps, frames, calls, turns, crashes, faults, archived, removed, byInstances := time.Now(), 0, 0, 0, 0, 0, 0,
		0, int64(0), int64(0)
	seed := *seedFlag
	for ; seed < *seedFlag+uint64(max(*seedsFlag, 1)) && (*stepsFlag == 0 || steps < *stepsFlag); seed++ {
		rep := simulate(t, seed, kept)
		steps, frames, calls, turns, crashes = steps+rep.steps, frames+rep.frames, calls+rep.calls, turns+rep.turns,
			crashes+rep.crashes
		archived += rep.archived
		removed += rep.removed
		if rep.instances {
			byInstances += rep.removed
		}
		for _, n := range rep.faults {
			faults += n
		}
		if *showFlag {
			t.Logf("seed %d: %d steps, %d frames, %d calls, %d turns, %d crashes, faults %s; digest %.8s, "+
				"journals %.8s", seed, rep.steps, rep.frames, rep.calls, rep.turns, rep.crashes, faultNames(rep), rep.digest, rep.journals)
			for _, line := range rep.trace {
				t.Log(line)
			}
		}
		if rep.err != nil {
			t.Fatalf("seed %d failed by %v\nrepeat it with: go test ./tests/sim -run 'TestSim$' -v -args -seed=%d "+
				"-seeds=1 -show", seed, rep.err, seed)
		}
	}
	t.Logf("seeds %d to %d together: %d steps, %d frames, %d calls, %d turns, %d crashes, %d faults, %d segments "+
		"archived, %d old events removed, %d of these by instances, in %s", *seedFlag, seed-1, steps, frames, calls,
		turns, crashes, faults, archived, removed, byInstances, time.Since(began).Round(time.Second))
}

// TestSim_InstancesRemoveHistory checks that instances, of which one takes planes over from the others, remove old
// events in one of a few worlds.
func TestSim_InstancesRemoveHistory(t *testing.T) {
	for seed := uint64(66); seed < 166; seed++ { // the first one does, until worlds become others
		rep := simulate(t, seed, kept)
		require.NoError(t, rep.err, "seed %d", seed)
		if rep.instances && rep.removed > 0 {
			return
		}
	}
	require.Fail(t, "no world with instances removed anything")
}

// TestSim_OneSeedOneRun checks that a seed decides everything, whatever the number of processors: two more runs choose
// the same steps and store the same bytes. Those of instances are compared on one processor, since on two a run of some
// dozens still parts from the others (docs/reliability.md).
func TestSim_OneSeedOneRun(t *testing.T) {
	n := max(*seedsFlag, proc.Scale(8, 24))
	if testing.Short() || race {
		n = 5
	}
	for seed := *seedFlag; seed < *seedFlag+uint64(n); seed++ {
		on := func(processors int) report {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
			return simulate(t, seed, -1)
		}
		first, others := on(1), []int{1, 2}
		if require.NoError(t, first.err, "seed %d", seed); first.instances {
			others = []int{1}
		}
		for _, processors := range others {
			again := on(processors)
			// The runtime preempts a goroutine that is slow, which a busy machine may do in one run and not in another.
			// Where that shows, two of some runs are the same.
			runs := []report{first, again}
			for len(runs) < 5 && !anyTwoAgree(runs) {
				runs = append(runs, on(processors))
			}
			if !anyTwoAgree(runs) {
				t.Errorf("seed %d on %d processors is another run: %s", seed, processors, difference(first, again))
			}
		}
	}
}

// anyTwoAgree reports whether two of some runs chose the same steps and stored the same bytes.
func anyTwoAgree(runs []report) bool {
	for i, a := range runs {
		for _, b := range runs[:i] {
			if a.digest == b.digest && a.journals == b.journals {
				return true
			}
		}
	}
	return false
}

// difference says where two runs part.
func difference(first, again report) string {
	for _, lines := range [][2][]string{{first.trace, again.trace}, {first.text, again.text}} {
		a, b := lines[0], lines[1]
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				return fmt.Sprintf("after\n%s\ncame first\n%s\nand then\n%s", strings.Join(a[max(0, i-16):i], "\n"),
					a[i], b[i])
			}
		}
	}
	return "one is longer"
}
