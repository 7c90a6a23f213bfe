package admission

import (
	"container/list"
	"context"
	"errors"
	"sync"
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
)

// ErrTooManyWait is the error of a call whose tenant has maxWaiting calls waiting for their turn.
var ErrTooManyWait = errors.New("admission: too many calls wait for their turn")

// Turns decides which calls run while a process is short of processor time, so that a tenant with many calls
// does not delay those of others: each tenant has the same number of calls running at a time, and its others
// wait in the order in which they came. The number follows from observations: it is decreased while
// goroutines wait longer for a processor than they should, and increased while they do not. While fewer than
// two tenants call there is no limit. A Turns is safe for concurrent use.
type Turns struct {
	target time.Duration

	mu      sync.Mutex
	limit   int // of the calls of each tenant that run at a time; 0: none
	tenants map[string]*tenant
	round   int // the number of observations
}

// tenant has the calls of one tenant.
type tenant struct {
	running int
	waiting list.List // of chan struct{}, in the order in which the calls came
	called  int       // the round of its last call
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
	if !limited || of.running < t.limit && of.waiting.Len() == 0 {
		of.running++
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
		of.running--
		t.admit(of)
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
		t.tenant.running--
		t.turns.admit(t.tenant)
	}
}

// LeaveSoon ends the turn in a moment. It is for calls that wait for something to happen once they have begun,
// such as streams.
func (t *Turn) LeaveSoon() {
	if t != nil {
		time.AfterFunc(soon, t.Leave)
	}
}

// admit lets calls of a tenant run that wait and may. The caller holds mu.
func (t *Turns) admit(of *tenant) {
	for of.waiting.Len() > 0 && (t.limit == 0 || of.running < t.limit) {
		of.running++
		close(of.waiting.Remove(of.waiting.Front()).(chan struct{})) //nolint:forcetypeassert // no other type is added
	}
}

// Observe adapts the limit to how long goroutines have waited for a processor since the last observation. It
// returns the limit, 0 if there is none.
func (t *Turns) Observe(waited time.Duration) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
	active, most := 0, 0
	for name, of := range t.tenants {
		most = max(most, of.running)
		switch {
		case of.called > t.round-recent || of.waiting.Len() > 0:
			active++
		case of.running == 0:
			delete(t.tenants, name)
		}
	}
	t.limit = next(t.limit, active, most, waited, t.target)
	for _, of := range t.tenants {
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
		return max(leastTurns, most*3/4)
	case waited > target:
		return max(leastTurns, limit*3/4)
	case limit == 0 || waited > target/2:
		return limit
	case limit*5/4+1 >= mostTurns:
		return 0
	}
	return limit*5/4 + 1
}
