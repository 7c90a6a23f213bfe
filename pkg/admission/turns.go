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
	// mostTurns is the value from which a growing limit is removed.
	mostTurns = 4096
	// maxWaiting is how many calls of one tenant may wait for their turn.
	maxWaiting = 2000
	// turnTime is how long a call counts as running at most while there is a limit. It resolves a deadlock of calls
	// of two processes that wait for turns at each other.
	turnTime = time.Second
	// soon is how long a call still counts as running after LeaveSoon.
	soon = 10 * time.Millisecond
	// recent is for how many observations a tenant counts as active after its last call.
	recent = 50
	// heavy is by which factor the demand of a tenant must exceed the mean for the tenant to be heavy: its calls
	// wait while calls of others run. Of two tenants, one with more than three times the demand of the other is
	// heavy.
	heavy = 1.5
	// calm is how many observations in a row must find that goroutines need not wait before the limit grows.
	calm = 10
	// memory is over how many observations the demand of a tenant is averaged.
	memory = 16
	// stepTime is how long Step waits at most. It is short, because leases may depend on the messages of a stream.
	stepTime = 200 * time.Millisecond
)

// ErrTooManyWait is the error of a call whose tenant has maxWaiting calls waiting for their turn.
var ErrTooManyWait = errors.New("admission: too many calls wait for their turn")

// Turns decides which calls run while a process is short of processor time, so that a tenant with many calls
// does not delay those of others. At most limit calls of each tenant run at a time, and its other calls wait in
// the order in which they arrived. Observe decreases the limit while goroutines wait longer for a processor than
// they should, and increases it while they do not. Calls of heavy tenants, which want much more than the mean, do
// not begin while calls of other tenants run, except for one with each observation. While fewer than two tenants
// make calls there is no limit. A Turns is safe for concurrent use.
type Turns struct {
	target time.Duration
	busy   atomic.Bool // limit is not 0

	mu      sync.Mutex
	limit   int // how many calls of each tenant may run at a time; 0: no limit
	tenants map[string]*tenant
	round   int       // how many observations there were
	calm    int       // how many of the last observations in a row found that goroutines need not wait
	light   int       // how many calls of tenants that are not heavy run
	heavy   []*tenant // the heavy tenants
}

// tenant has the calls of one tenant.
type tenant struct {
	running int
	waiting list.List // of chan struct{}, in the order in which the calls arrived
	called  int       // the round of its last call
	demand  float64   // how many calls ran or waited, averaged over the last observations
	heavy   bool      // its demand is much more than the mean; see the constant heavy
}

// NewTurns returns a Turns without a limit. target is how long goroutines should wait for a processor at most.
func NewTurns(target time.Duration) *Turns {
	return &Turns{target: target, tenants: map[string]*tenant{}}
}

// Turn is the right of one call to run. A nil Turn is valid: it belongs to a call that is not counted.
type Turn struct {
	turns  *Turns
	tenant *tenant
	left   bool // guarded by turns.mu
}

// Enter waits until a call of a tenant may run. The caller must call Leave of the Turn when the call has ended. It
// returns the error of ctx if that ends first, and ErrTooManyWait at once if maxWaiting calls of the tenant wait.
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
	case <-mine: // begin has counted it as running in the meantime
		t.run(of, -1)
	default:
		of.waiting.Remove(place)
	}
	return nil, ctx.Err()
}

// bounded makes the turn end by itself after turnTime if limited is set. It returns t.
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

// LeaveSoon makes the turn end by itself after the time soon. It is for calls that after their beginning mostly wait,
// such as streams.
func (t *Turn) LeaveSoon() {
	if t != nil {
		time.AfterFunc(soon, t.Leave)
	}
}

// Step waits until a stream of a tenant, whose own turn has ended, may handle one more message. It waits for at most
// stepTime, and not at all while there is no limit. If it has waited in vain it returns nil, and the stream should
// go on. The caller must call Leave of the Turn.
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

// run adds n, which is 1 or -1, to the running calls of a tenant. If n is -1, it also lets waiting calls run that
// may run now. The caller holds mu.
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

// admit lets waiting calls of a tenant run as long as they may. The caller holds mu.
func (t *Turns) admit(of *tenant) {
	for of.waiting.Len() > 0 && t.may(of) {
		t.begin(of)
	}
}

// begin lets the first waiting call of a tenant run; there must be one. The caller holds mu.
func (t *Turns) begin(of *tenant) {
	t.run(of, 1)
	close(of.waiting.Remove(of.waiting.Front()).(chan struct{})) //nolint:forcetypeassert // no other type is added
}

// Contended reports whether two or more tenants have made calls recently, so that there may be a limit.
func (t *Turns) Contended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.tenants) > 1
}

// Observe adapts the limit to waited, which is how long goroutines wait for a processor at present, see Delay. It
// halves the limit, or sets one, if waited exceeds the target, and increases it once waited was at most half of the
// target in calm observations in a row. It returns the limit; 0 if there is none. It should be called at regular
// intervals.
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
			t.begin(of) // one call also of a heavy tenant, even while calls of others run
		}
		t.admit(of)
	}
	return t.limit
}

// next returns the new limit. limit is the present one, active is how many tenants are active, most how many running
// calls the tenant with the most of them has, and waited how long goroutines have waited for a processor.
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
