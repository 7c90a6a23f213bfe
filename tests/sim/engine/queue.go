package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrDead is returned to whatever a dead process does.
var ErrDead = errors.New("sim: the process is dead")

// Outcome is what happens to a crossing. Each seam says which outcomes it knows.
type Outcome int

// Pass is the outcome of a crossing to which nothing happens. Died means that its process died; Kept that it
// died and the crossing still has its effect, such as a frame that the disk had received.
const (
	Pass Outcome = iota
	Died
	Kept
	Lost       // it has no effect, and its sender is not told
	Unanswered // it has its effect, and its sender is not told
	Doubled    // it has its effect twice
	Refused    // it has no effect, and its sender is told
	Busy       // it has no effect now, and its sender is told to try again
	Delayed    // its sender is told nothing; it has its effect later, or never
)

var outcomeNames = [...]string{"pass", "died", "kept", "lost", "unanswered", "doubled", "refused", "busy", "delayed"}

// String implements fmt.Stringer.
func (o Outcome) String() string { return outcomeNames[o] }

// Crossing describes something that is about to cross a seam.
type Crossing struct {
	// Edge names the seam and what crosses it. Two crossings with the same Edge and the same cause must not be
	// parked at the same time, unless they are interchangeable.
	Edge string
	// Name, if set, is the name in place of the one that Queue.Name gives.
	Name string
	// Of is the process that sends it; nil if it belongs to none and outlives all.
	Of *Process
	// Faults are the outcomes other than Pass that it may have.
	Faults []Outcome
}

// Config of a Queue. Wait is required.
type Config struct {
	Seed uint64
	// Wait returns once every other goroutine of the bubble is blocked: synctest.Wait.
	Wait func()
	// FaultRate is the share of the crossings with Faults that have one.
	FaultRate float64
	// HoldRate is the share of steps at which an edge is held back for a while.
	HoldRate float64
	// StallRate is the share of steps at which a crossing that may be Refused, such as a frame, is held back for a
	// while, and then has one of its Faults, most often Refused. Meanwhile other crossings come to wait for it.
	StallRate float64
	// PauseRate is the share of steps at which time passes although something could be passed on.
	PauseRate float64
	// Choices has the trace show what each step chose from.
	Choices bool
	// Trace, if set, receives a line for each step.
	Trace func(line string)
}

// Queue is the only scheduler of a run. Park, Name, Calmed, Steps and Parked may be called from any goroutine of the
// run's testing/synctest bubble, the other methods only by its driver, the goroutine that calls Step.
type Queue struct {
	cfg Config
	rnd *rand.Rand

	mu      sync.Mutex
	parked  map[string]*parked
	seen    map[string]int // how often an edge was parked
	arrived chan struct{}  // capacity 1
	over    chan struct{}  // closed by Close

	held   map[string]int         // edges that are held back, until a step
	frozen map[*Process]time.Time // processes of which nothing passes, until a time
	fails  map[string]Outcome     // by edge: the outcome of its next crossing that may have this outcome
	calm   bool                   // no faults, holds or pauses any more
	closed bool
	steps  int
	faults map[Outcome]int
	trace  hash.Hash
}

type parked struct {
	Crossing
	key     string
	release chan Outcome // capacity 1
}

// New returns an empty queue.
func New(cfg Config) *Queue {
	return &Queue{
		cfg: cfg, rnd: rand.New(rand.NewPCG(cfg.Seed, 0x51)),
		parked: map[string]*parked{}, seen: map[string]int{}, arrived: make(chan struct{}, 1),
		over: make(chan struct{}),
		held: map[string]int{}, frozen: map[*Process]time.Time{}, fails: map[string]Outcome{},
		faults: map[Outcome]int{}, trace: sha256.New(),
	}
}

// causeKey is the context key of the name of the crossing that something is done for.
type causeKey struct{}

// Because returns a context for what is done for a named crossing. Crossings under it have names of their own, so that
// two handlers that do the same at the same time are told apart.
func Because(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, causeKey{}, name)
}

// Name returns a name for a crossing over an edge: the edge, a hash of the name that Because gave to ctx, if any, and
// how often Name was called for these, this call included.
func (q *Queue) Name(ctx context.Context, edge string) string {
	if cause, ok := ctx.Value(causeKey{}).(string); ok {
		sum := sha256.Sum256([]byte(cause))
		edge += " @" + hex.EncodeToString(sum[:4])
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seen[edge]++
	return edge + "#" + strconv.Itoa(q.seen[edge])
}

// Park blocks until the driver lets the crossing pass, or ctx ends, and returns the outcome that the caller has to
// bring about. The error is that of ctx. For a dead process, and after Close, Park returns Died at once.
func (q *Queue) Park(ctx context.Context, d Crossing) (Outcome, error) {
	key := d.Name
	if key == "" {
		key = q.Name(ctx, d.Edge)
	}
	q.mu.Lock()
	if d.Of.isDead() || q.closed {
		q.mu.Unlock()
		return Died, nil
	}
	if err := ctx.Err(); err != nil {
		q.mu.Unlock()
		return Lost, err
	}
	p := &parked{Crossing: d, key: key, release: make(chan Outcome, 1)}
	q.parked[p.key] = p
	q.mu.Unlock()
	select {
	case q.arrived <- struct{}{}:
	default:
	}
	select {
	case o := <-p.release:
		return o, nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.parked, p.key)
	select {
	case o := <-p.release: // both; what the driver chose counts
		return o, nil
	default:
		return Lost, ctx.Err()
	}
}

// Step waits until nothing moves and then lets one crossing pass. If there is none, it lets time pass until there is
// one, but idle at most, and returns false if none came.
func (q *Queue) Step(idle time.Duration) bool {
	q.cfg.Wait()
	keys := q.ready()
	switch {
	case len(keys) == 0:
		return q.pass(min(idle, q.thaw()), true)
	case !q.calm && q.rnd.Float64() < q.cfg.PauseRate:
		q.note("pause")
		pauses := [...]time.Duration{
			time.Millisecond, 20 * time.Millisecond, 400 * time.Millisecond, 3 * time.Second,
			20 * time.Second,
		}
		return q.pass(pauses[q.rnd.IntN(len(pauses))], false)
	}
	if !q.calm && q.cfg.StallRate > 0 && q.rnd.Float64() < q.cfg.StallRate {
		if keys = q.stall(keys); len(keys) == 0 {
			return true
		}
	}
	q.mu.Lock()
	p := q.parked[keys[q.rnd.IntN(len(keys))]]
	delete(q.parked, p.key)
	q.mu.Unlock()
	outcome := Pass
	if !q.calm {
		edge := group(p.key)
		if len(p.Faults) > 0 && q.rnd.Float64() < q.cfg.FaultRate {
			outcome = p.Faults[q.rnd.IntN(len(p.Faults))]
		}
		if o, fails := q.fails[edge]; fails && slices.Contains(p.Faults, o) {
			outcome = o
			delete(q.fails, edge)
		}
		if outcome != Pass {
			q.faults[outcome]++
		}
		if q.rnd.Float64() < q.cfg.HoldRate {
			q.held[edge] = q.steps + 5 + q.rnd.IntN(120)
		}
	}
	q.mu.Lock()
	q.steps++
	q.mu.Unlock()
	if q.cfg.Choices {
		q.note("among " + strings.Join(keys, ", "))
	}
	q.note(p.key + " " + outcome.String())
	p.release <- outcome
	return true
}

// stall holds back the edge of one of the crossings that may be Refused, if there is one. It returns the keys of the
// crossings that can still pass.
func (q *Queue) stall(keys []string) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var writes []string
	for _, k := range keys {
		if slices.Contains(q.parked[k].Faults, Refused) {
			writes = append(writes, k)
		}
	}
	if len(writes) == 0 {
		return keys
	}
	k := writes[q.rnd.IntN(len(writes))]
	edge, faults := group(k), q.parked[k].Faults
	q.held[edge], q.fails[edge] = q.steps+10+q.rnd.IntN(100), Refused
	if q.rnd.IntN(3) == 0 {
		q.fails[edge] = faults[q.rnd.IntN(len(faults))]
	}
	q.note("stall " + edge + ", then " + q.fails[edge].String())
	return slices.DeleteFunc(keys, func(k string) bool { return group(k) == edge })
}

// pass lets the time d pass. If wanted is set, it returns as soon as a crossing can pass, and false if none can after
// d.
func (q *Queue) pass(d time.Duration, wanted bool) bool {
	over := time.NewTimer(d)
	defer over.Stop()
	if !wanted {
		<-over.C
		<-time.After(time.Nanosecond)
		return true
	}
	for {
		select {
		case <-q.arrived:
			// A crossing that was given up in the moment in which it arrived does not
			// count. All timers of this moment fire before time goes on.
			<-time.After(time.Nanosecond)
			if q.cfg.Wait(); len(q.ready()) > 0 {
				return true
			}
		case <-over.C:
			<-time.After(time.Nanosecond)
			q.cfg.Wait()
			return len(q.ready()) > 0
		}
	}
}

// group returns the first two words of an edge. Edges that have the same are held back together.
func group(edge string) string {
	words := strings.SplitN(edge, " ", 3)
	return strings.Join(words[:min(2, len(words))], " ")
}

// ready returns the keys of the crossings that can pass, sorted. If all others than those of frozen processes are
// held back, it ends the holds.
func (q *Queue) ready() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var keys, held []string
	for k, p := range q.parked {
		switch {
		case time.Now().Before(q.frozen[p.Of]):
		case q.held[group(p.key)] <= q.steps:
			keys = append(keys, k)
		default:
			held = append(held, k)
		}
	}
	if len(keys) == 0 && len(held) > 0 {
		clear(q.held)
		keys = held
	}
	slices.Sort(keys)
	return keys
}

// Freeze keeps everything that a process sends from passing for a while: the process is suspended, or reaches nobody.
// Only the driver may call it.
func (q *Queue) Freeze(p *Process, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.note("freeze " + p.Name + " " + d.String())
	q.frozen[p] = time.Now().Add(d)
}

// thaw returns when the first of the frozen processes goes on, counted from now; the longest duration if none is.
func (q *Queue) thaw() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := time.Duration(math.MaxInt64)
	for p, at := range q.frozen {
		if d := time.Until(at); d > 0 && !p.isDead() {
			first = min(first, d)
		}
	}
	return first
}

// Calm ends faults, holds, freezes and pauses for the rest of the run.
func (q *Queue) Calm() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calm = true
	clear(q.held)
	clear(q.frozen)
}

// Calmed reports whether Calm was called.
func (q *Queue) Calmed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.calm
}

// Kill makes processes dead at once: all their parked crossings fail, with the outcome Died or, for one that may be
// Unanswered and if the seed says so, Kept.
func (q *Queue) Kill(all ...*Process) {
	q.cfg.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range all {
		q.note("kill " + p.Name)
		p.dead.Store(true)
	}
	var keys []string
	for k, d := range q.parked {
		if d.Of.isDead() {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		d := q.parked[k]
		delete(q.parked, k)
		if slices.Contains(d.Faults, Unanswered) && q.rnd.IntN(2) == 0 {
			d.release <- Kept
			continue
		}
		d.release <- Died
	}
}

// Close makes everything that is parked, and everything that is parked later, fail as if its process were dead.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.over)
	}
	for k, d := range q.parked {
		delete(q.parked, k)
		d.release <- Died
	}
}

// Rand returns the run's source of random numbers, which only the driver may use.
func (q *Queue) Rand() *rand.Rand { return q.rnd }

// Note adds a line to the trace. Only the driver may call it.
func (q *Queue) Note(format string, args ...any) { q.note(fmt.Sprintf(format, args...)) }

func (q *Queue) note(line string) {
	q.trace.Write([]byte(line + "\n"))
	if q.cfg.Trace != nil {
		q.cfg.Trace(strconv.Itoa(q.steps) + " " + time.Now().UTC().Format("15:04:05.000000") + " " + line)
	}
}

// Steps returns how many crossings passed.
func (q *Queue) Steps() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.steps
}

// Faults returns how often each outcome other than Pass was chosen.
func (q *Queue) Faults() map[Outcome]int { return q.faults }

// Digest returns a hash of everything that the driver chose.
func (q *Queue) Digest() string { return hex.EncodeToString(q.trace.Sum(nil)) }

// Parked returns the names of what is parked, sorted.
func (q *Queue) Parked() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var keys []string
	for k := range q.parked {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
