package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/retry"
	"quartet/services/work/homes"
	"quartet/tests/planes"
	"quartet/tests/sim/engine"
)

// Bounds of one run. They decide only when a run is given up.
const (
	callsOfClient = 16
	mostCrashes   = 12
	mostSteps     = 60000 // a run that takes more has a loop
	mostQuiet     = 4000  // crossings after the last turn until nothing happens any more
	mostTurns     = 160   // turns of a drained world; more are a tick loop
	drainTime     = 4 * time.Minute
)

// report is what came of a run.
type report struct {
	instances bool  // the world has instances with leases
	restored  int   // loads that began at a snapshot
	archived  int   // segments that are in archives at the end
	removed   int64 // events that were removed from these
	seed      uint64
	digest    string // of the choices
	journals  string // of everything that was stored
	steps     int
	frames    int
	calls     int
	turns     int
	crashes   int
	faults    map[engine.Outcome]int
	types     map[string]int
	refusals  map[string]int
	results   map[string]int
	oracle    string // what found err
	err       error
	trace     []string
	text      []string // of the frames, if everything is kept
}

// kept is how many lines of the trace a report has.
const kept = 400

// violated is the error of an oracle.
type violated struct {
	oracle string
	cause  error
}

func (v violated) Error() string { return v.oracle + ": " + v.cause.Error() }

// run is one run.
type run struct {
	rep     *report
	q       *engine.Queue
	w       *world
	k       *known
	rnd     *rand.Rand // of what the driver does itself
	keep    int        // lines of the trace; negative: everything
	clients sync.WaitGroup
	all     sync.WaitGroup // of the goroutines that are no service's
	busy    chan struct{}  // closed when all clients are done
	faulty  bool
	workers []worker

	commands, boards bool    // the world has them
	crashes          float64 // share of steps
}

// simulate runs one seed. It sees to it that nothing else is random.
func simulate(t *testing.T, seed uint64, keep int) (rep report) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, seed)
	defer retry.Steady()()
	defer homes.FixTimes(epoch)()
	home := filepath.Join(base, "home")
	if err := os.RemoveAll(home); err != nil {
		t.Fatal(err)
	}
	rep = report{seed: seed, results: map[string]int{}}
	k := newKnown()
	synctest.Test(t, func(*testing.T) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		cfg := engine.Config{Seed: seed, Wait: synctest.Wait, Choices: keep < 0, Trace: func(line string) {
			if rep.trace = append(rep.trace, line); keep > 0 && len(rep.trace) > 2*keep {
				rep.trace = append(rep.trace[:0], rep.trace[len(rep.trace)-keep:]...)
			}
		}}
		r := &run{rep: &rep, rnd: rnd, keep: keep, faulty: rnd.IntN(8) != 0, busy: make(chan struct{})}
		if r.faulty {
			cfg.FaultRate = []float64{0.002, 0.02, 0.06}[rnd.IntN(3)]
			cfg.HoldRate = []float64{0, 0.005, 0.02}[rnd.IntN(3)]
			cfg.StallRate = []float64{0, 0.002, 0.01}[rnd.IntN(3)]
			cfg.PauseRate = []float64{0, 0.002, 0.01}[rnd.IntN(3)]
			r.crashes = []float64{0, 0.002, 0.01}[rnd.IntN(3)]
		}
		r.q = engine.New(cfg)
		r.k = k
		more := rand.New(rand.NewPCG(seed, 4))
		commands, boards := more.IntN(3) == 0, more.IntN(3) == 0
		names := slices.Clone(planes.Names)
		if boards {
			names = append(names, "board")
		}
		switch mode := rnd.IntN(3); mode {
		case 0, 1:
			r.w = newWorld(r.q, home, mode == 0, names)
		default:
			r.w = newWorld(r.q, home, false, instanceNames)
			rep.instances = true
		}
		if boards {
			r.w.planes = journals
		}
		r.commands, r.boards = commands, boards
		// a segment of a few frames, or of some dozens
		r.w.segment = []int64{0, 2 << 10, 12 << 10}[rnd.IntN(3)]
		// after some frames, or some dozens
		r.w.snapshot = []int64{0, 3 << 10, 20 << 10}[rand.New(rand.NewPCG(seed, 2)).IntN(3)]
		r.w.archived = rand.New(rand.NewPCG(seed, 3)).IntN(4) > 0
		r.w.short = rand.New(rand.NewPCG(seed, 4)).IntN(2) > 0
		r.w.evicts = rand.New(rand.NewPCG(seed, 5)).IntN(3) > 0
		err := r.play()
		var v violated
		if errors.As(err, &v) {
			rep.oracle = v.oracle
		}
		if closeErr := r.w.close(); err == nil {
			err = closeErr
		}
		r.all.Wait()
		rep.err = err
		r.finish()
	})
	if rep.err == nil && !k.linearizable() {
		rep.oracle, rep.err = "linearizability", errors.New("the objectives of items do not behave as registers")
	}
	return rep
}

// finish fills in the report.
func (r *run) finish() {
	r.rep.restored = r.w.fromSnapshots
	r.rep.digest, r.rep.steps, r.rep.faults = r.q.Digest(), r.q.Steps(), r.q.Faults()
	sum := sha256.New()
	for _, p := range journals {
		if c, err := archive.Read(context.Background(), r.w.archives[p], framelog.PartitionName(p, 0)); err == nil {
			r.rep.archived += len(c.Segments)
			for _, s := range c.Segments {
				r.rep.removed += s.GetRemovedLines()
			}
		}
		for _, f := range r.w.frames(p) {
			text := fmt.Sprintf("%s %s %d %s %s", p, f.ID, f.Generation, f.Link, f.Body)
			sum.Write([]byte(text))
			r.rep.frames++
			if r.keep < 0 {
				r.rep.text = append(r.rep.text, text)
			}
		}
	}
	r.rep.journals = hex.EncodeToString(sum.Sum(nil))
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	r.rep.calls, r.rep.refusals, r.rep.types = r.k.calls, r.k.refusals, r.w.books.types
}

// check returns what an oracle that looks at each step has found.
func (r *run) check() error {
	switch {
	case r.w.books.check() != nil:
		return violated{"books", r.w.books.check()}
	case r.k.check() != nil:
		return violated{"answers", r.k.check()}
	case r.w.books.copied.check() != nil:
		return violated{"events", r.w.books.copied.check()}
	case r.w.leasesOverlap() != nil:
		return violated{"leases", r.w.leasesOverlap()}
	case r.w.failed() != nil:
		return violated{"start", r.w.failed()}
	case r.q.Steps() > mostSteps:
		return violated{"bounded", fmt.Errorf("%d crossings; parked: %s", r.q.Steps(),
			strings.Join(r.q.Parked(), ", "))}
	}
	return nil
}

// step takes one step of the queue, and returns when all that came of it is done.
func (r *run) step(idle time.Duration) (moved bool, err error) {
	moved = r.q.Step(idle)
	synctest.Wait()
	return moved, r.check()
}

// until steps until done is closed.
func (r *run) until(what string, done <-chan struct{}, each func()) error {
	for still := 0; ; {
		select {
		case <-done:
			return nil
		default:
		}
		moved, err := r.step(time.Minute)
		if err != nil {
			return err
		}
		if still++; moved {
			still = 0
		}
		if still > 20 { // minutes
			return violated{"progress", fmt.Errorf("%s hangs", what)}
		}
		if each != nil {
			each()
		}
	}
}

// play runs the world from its start to its end.
func (r *run) play() error {
	w := r.w
	for _, name := range w.names {
		w.start(name)
	}
	for !w.up() {
		if _, err := r.step(time.Minute); err != nil {
			return err
		}
	}
	spawned := make(chan struct{})
	first := newClient(w, r.k, "setup", r.rep.seed)
	r.all.Go(func() {
		defer close(spawned)
		first.spawn()
	})
	if err := r.until("spawning", spawned, nil); err != nil {
		return err
	}
	for n := range 3 {
		c := newClient(w, r.k, fmt.Sprint("client", n), r.rep.seed*8+uint64(n))
		r.clients.Go(func() { c.run(callsOfClient) })
	}
	if w.eraseAfter() > 0 {
		c := newClient(w, r.k, "gone", r.rep.seed*8+5)
		r.clients.Go(c.liveAndGo)
	}
	if r.commands {
		c := newCommandCalls(w, r.k, "commands", r.rep.seed*8+3)
		r.clients.Go(func() { c.run(callsOfClient) })
		for n := range 2 {
			r.workers = append(r.workers, newCommandWorker(w, r.k, fmt.Sprint("worker-", n), r.rep.seed*16+uint64(n),
				w.did))
		}
	}
	if r.boards {
		c := newBoardCalls(w, r.k, "boards", r.rep.seed*8+4)
		r.clients.Go(func() { c.run(2 * callsOfClient) })
		for n := range 2 {
			r.workers = append(r.workers, newBoardWorker(w, r.k, fmt.Sprint("hand-", n), r.rep.seed*16+uint64(2+n)))
		}
	}
	r.all.Go(func() {
		r.clients.Wait()
		close(r.busy)
	})
	ctx, leave := context.WithCancel(w.ctx)
	defer leave()
	runs := &runner{client: newClient(w, r.k, "runner", r.rep.seed*8+7), results: r.rep.results, commands: r.commands}
	other := &runner{client: newClient(w, r.k, "another", r.rep.seed*8+6), results: map[string]int{}, extra: true}
	for _, one := range []*runner{runs, other} {
		one.again = agentv1.NewAgentServiceClient(w.conn(nil, one.name+"-again", "agent"))
	}
	left := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { runs.run(ctx) })
	running.Go(func() { other.run(ctx) })
	for _, one := range r.workers {
		running.Go(func() { one.run(ctx) })
	}
	r.all.Go(func() {
		running.Wait()
		close(left)
	})
	if err := r.until("a client", r.busy, r.disturb); err != nil {
		return err
	}
	return r.drain(runs, leave, left)
}

// disturb does, now and then, what happens to processes and machines.
func (r *run) disturb() {
	if r.rnd.Float64() >= r.crashes || r.rep.crashes >= mostCrashes && !r.w.disk.Full() {
		return
	}
	name := r.w.names[r.rnd.IntN(len(r.w.names))]
	switch k := r.rnd.IntN(11); {
	case r.w.split() && (k < 3 || k == 7):
		r.rep.crashes++
		r.w.freeze(name, time.Duration(r.rnd.IntN(int(4*leaseTerm))))
	case k < 6:
		r.rep.crashes++
		r.w.crash(name)
	case k < 7:
		r.q.Note("restart %s", name)
		r.w.restart(name)
		r.w.sweepReplaced()
	case k < 8:
		r.q.Note("replace %s", name)
		r.rep.crashes++
		r.w.replace(name)
	case k < 9:
		by := time.Duration(r.rnd.IntN(40000)-20000) * time.Millisecond
		r.q.Note("clock %s", by)
		r.w.shift.add(by)
	case k < 10:
		n := r.rnd.IntN(40)
		r.q.Note("EVENTS loses %d messages", n)
		r.w.loseEvents(n)
	default:
		r.rep.crashes++
		full := !r.w.disk.Full()
		r.q.Note("disk full %t", full)
		r.w.disk.Fill(full)
	}
}

// drain lets everything come to its end without faults, and asks the oracles about what is left.
func (r *run) drain(runs *runner, leave func(), left <-chan struct{}) error {
	r.q.Calm()
	r.w.sweepReplaced()
	r.w.disk.Fill(false)
	runs.modest = true
	for _, one := range r.workers {
		one.calm()
	}
	r.q.Note("calm")
	before := runs.turns
	for until := time.Now().Add(drainTime); time.Now().Before(until) || !r.w.up(); {
		if _, err := r.step(time.Until(until)); err != nil {
			return err
		}
	}
	if n := runs.turns - before; n > mostTurns {
		return violated{"tick loop", fmt.Errorf("%d turns while nothing came from outside", n)}
	}
	if err := r.worked(); err != nil {
		return err
	}
	leave()
	if err := r.until("the runner", left, nil); err != nil {
		return err
	}
	r.rep.turns = runs.turns
	if err := r.quiet(); err != nil {
		return err
	}
	if err := r.settled(); err != nil {
		return err
	}
	if err := r.staleTicks(); err != nil {
		return err
	}
	if err := r.w.books.copied.atRest(); err != nil {
		return violated{"events", err}
	}
	if err := r.again(); err != nil {
		return err
	}
	if err := r.erased(); err != nil {
		return err
	}
	return r.damage()
}

// quiet steps until nothing happens for a while.
func (r *run) quiet() error {
	for n := 0; ; n++ {
		moved, err := r.step(10 * time.Minute)
		switch {
		case err != nil:
			return err
		case !moved:
			return nil
		case n > mostQuiet:
			return violated{"bounded", fmt.Errorf("%d crossings and no end; parked: %s", n,
				strings.Join(r.q.Parked(), ", "))}
		}
	}
}

// again kills everything that is quiet and starts it anew. That must not change anything: what a load or a first
// sweep brings about had no waker before (SPEC D1, X14).
func (r *run) again() error {
	r.w.books.mu.Lock()
	before := fmt.Sprint(r.w.books.types)
	r.w.books.mu.Unlock()
	changed := r.w.books.changed()
	r.q.Note("again")
	if r.w.together {
		r.w.crash()
	} else {
		for _, name := range r.w.names {
			r.w.crash(name)
		}
	}
	for !r.w.up() {
		if _, err := r.step(time.Minute); err != nil {
			return err
		}
	}
	if err := r.quiet(); err != nil {
		return err
	}
	if n := r.w.books.changed(); n != changed {
		return violated{"named waker", fmt.Errorf("a restart of a quiet system wrote %d events: before %s, after %s",
			n-changed, before, fmt.Sprint(r.w.books.types))}
	}
	return r.w.books.replayed(r.w)
}

// faultNames returns the faults of a report in order.
func faultNames(rep report) string {
	var all []string
	for o, n := range rep.faults {
		all = append(all, fmt.Sprintf("%s %d", o, n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
