package admission

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// leastTurns is the smallest limit of a Turns.
	leastTurns = 1
	// mostTurns is the limit of a Turns from which there is none any more.
	mostTurns = 4096
	// maxWaiting is how many calls of one tenant may wait for their turn.
	maxWaiting = 2000
	// turnTime is how long a call counts as running that has waited for its turn. Calls of two processes that
	// wait for each other's turns go on after it.
	turnTime = time.Second
	// soon is how long a call counts as running that waits for something to happen.
	soon = 10 * time.Millisecond
	// recent is for how many observations a tenant counts as active after its last call.
	recent = 50
	// heavy is how many times the mean demand a tenant has whose calls let those of others go first. Of two
	// tenants it is one with three times the demand of the other.
	heavy = 1.5
	// calm is how many observations in a row must find that goroutines need not wait before the limit grows.
	calm = 10
	// memory is over how many observations the demand of a tenant is averaged.
	memory = 16
	// stepTime is how long a step waits at most. It is short, because the steps of a stream may be what keeps its
	// leases from lapsing.
	stepTime = 200 * time.Millisecond
)

// ErrTooManyWait is the error of a call whose tenant has maxWaiting calls waiting for their turn.
var ErrTooManyWait = errors.New("admission: too many calls wait for their turn")

// Turns decides which calls run while a process is short of processor time, so that a tenant with many calls
// does not delay those of others: each tenant has the same number of calls running at a time, and its others
// wait in the order in which they came. The number follows from observations: it is decreased while
// goroutines wait longer for a processor than they should, and increased while they do not. Tenants that want
// much more than the mean begin no call while one of another tenant runs, but one with each observation. While
// fewer than two tenants call there is no limit. A Turns is safe for concurrent use.
type Turns struct {
	target time.Duration
	busy   atomic.Bool // there is a limit

	mu      sync.Mutex
	limit   int // of the calls of each tenant that run at a time; 0: none
	tenants map[string]*tenant
	round   int // the number of observations
	calm    int // the number of the last ones that found that goroutines need not wait
	light   int // calls of tenants that are not heavy that run
	heavy   []*tenant
}

// tenant has the calls of one tenant.
type tenant struct {
	running int
	waiting list.List // of chan struct{}, in the order in which the calls came
	called  int       // the round of its last call
	demand  float64   // how many calls ran or waited, averaged over the last observations
	heavy   bool      // it wants much more than the mean
}

// NewTurns returns a Turns without a limit. Goroutines should not wait longer than target for a processor.
func NewTurns(target time.Duration) *Turns {
	return &Turns{target: target, tenants: map[string]*tenant{}}
}

// Turn is a call that runs. The nil Turn is of a call that is not counted.
type Turn struct {
	turns  *Turns
	tenant *tenant
	left   bool // guarded by turns.mu
}

// Enter waits until a call of a tenant may run. It returns the error of ctx if that ends first, and
// ErrTooManyWait without waiting.
func (t *Turns) Enter(ctx context.Context, name string) (*Turn, error) {
	t.mu.Lock()
	of := t.tenants[name]
	if of == nil {
		of = &tenant{}
		t.tenants[name] = of
	}
	of.called = t.round
	turn := &Turn{turns: t, tenant: of}
	limited := t.limit > 0
	if of.waiting.Len() == 0 && t.may(of) {
		t.run(of, 1)
		t.mu.Unlock()
		return turn.bounded(limited), nil
	}
	if of.waiting.Len() >= maxWaiting {
		t.mu.Unlock()
		return nil, ErrTooManyWait
	}
	mine := make(chan struct{})
	place := of.waiting.PushBack(mine)
	t.mu.Unlock()
	select {
	case <-mine:
		return turn.bounded(true), nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-mine: // it was its turn at that moment
		t.run(of, -1)
	default:
		of.waiting.Remove(place)
	}
	return nil, ctx.Err()
}

// bounded makes a call that runs while there is a limit leave after turnTime.
func (t *Turn) bounded(limited bool) *Turn {
	if limited {
		time.AfterFunc(turnTime, t.Leave)
	}
	return t
}

// Leave ends the turn. Further calls do nothing.
func (t *Turn) Leave() {
	if t == nil {
		return
	}
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	if !t.left {
		t.left = true
		t.turns.run(t.tenant, -1)
	}
}

// LeaveSoon ends the turn in a moment. It is for calls that wait for something to happen once they have begun,
// such as streams.
func (t *Turn) LeaveSoon() {
	if t != nil {
		time.AfterFunc(soon, t.Leave)
	}
}

// Step waits until a stream of a tenant, which has left its turn, may do what one more message takes. It waits
// for stepTime at most, and not at all while there is no limit. The caller ends the turn, which may be nil.
func (t *Turns) Step(ctx context.Context, name string) *Turn {
	if !t.busy.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	turn, _ := t.Enter(ctx, name) // without a turn the stream goes on all the same
	return turn
}

// may reports whether one more call of a tenant may run. The caller holds mu.
func (t *Turns) may(of *tenant) bool {
	return t.limit == 0 || of.running < t.limit && (!of.heavy || t.light == 0)
}

// run counts one more or one less running call of a tenant, and lets calls run that may now. The caller holds mu.
func (t *Turns) run(of *tenant, n int) {
	of.running += n
	if !of.heavy {
		t.light += n
	}
	if n > 0 {
		return
	}
	t.admit(of)
	if t.light == 0 && !of.heavy {
		for _, other := range t.heavy {
			t.admit(other)
		}
	}
}

// admit lets calls of a tenant run that wait and may. The caller holds mu.
func (t *Turns) admit(of *tenant) {
	for of.waiting.Len() > 0 && t.may(of) {
		t.begin(of)
	}
}

// begin lets the first call of a tenant run that waits. The caller holds mu.
func (t *Turns) begin(of *tenant) {
	t.run(of, 1)
	close(of.waiting.Remove(of.waiting.Front()).(chan struct{})) //nolint:forcetypeassert // no other type is added
}

// Contended reports whether two or more tenants call, so that there may be a limit.
func (t *Turns) Contended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.tenants) > 1
}

// Observe adapts the limit to how long goroutines have waited for a processor since the last observation. It
// returns the limit, 0 if there is none.
func (t *Turns) Observe(waited time.Duration) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
	active, most, sum := 0, 0, 0.0
	for name, of := range t.tenants {
		most = max(most, of.running)
		of.demand += (float64(of.running+of.waiting.Len()) - of.demand) / memory
		switch {
		case of.called > t.round-recent || of.waiting.Len() > 0:
			active++
			sum += of.demand
		case of.running == 0:
			delete(t.tenants, name)
		}
	}
	if t.calm++; waited > t.target/2 {
		t.calm = 0
	}
	if t.calm == 0 || t.calm >= calm || active < 2 {
		t.limit = next(t.limit, active, most, waited, t.target)
	}
	t.busy.Store(t.limit > 0)
	t.light, t.heavy = 0, t.heavy[:0]
	for _, of := range t.tenants {
		if of.heavy = of.demand*float64(active) > heavy*sum; of.heavy {
			t.heavy = append(t.heavy, of)
		} else {
			t.light += of.running
		}
	}
	for _, of := range t.tenants {
		if of.waiting.Len() > 0 && of.running < t.limit {
			t.begin(of) // also one of a heavy tenant while others run
		}
		t.admit(of)
	}
	return t.limit
}

// next returns the limit that follows a limit, given how many tenants are active, the most calls that one of
// them has running, and how long goroutines have waited for a processor.
func next(limit, active, most int, waited, target time.Duration) int {
	switch {
	case active < 2:
		return 0
	case waited > target && limit == 0:
		return max(leastTurns, most/2)
	case waited > target:
		return max(leastTurns, limit/2)
	case limit == 0 || waited > target/2:
		return limit
	case limit*5/4+1 >= mostTurns:
		return 0
	}
	return limit*5/4 + 1
}
