package runners

import (
	"strings"
	"sync"
	"time"

	"quartet/pkg/clock"
	"quartet/services/agent/ref"
)

const (
	// failedPause is the least time for which an agent is passed over whose turn
	// could not be prepared.
	MinBackoff = time.Second
	// failedShare bounds what such an agent costs: it is passed over for this
	// many times as long as the attempt took, so that one whose calls hang holds
	// at most one runner in eleven, and only while nobody else does better.
	backoffFactor = 10
)

// ailing are the agents whose turn could not be prepared, and until when every
// runner passes them over. One agent's trouble keeps no runner from another
// agent (SPEC D5): without this each runner would try the sick one first, since
// it has been ready longest.
type Backoff struct {
	clk     clock.Clock
	due     *clock.Due
	onRetry func(ref.Agent)

	mu    sync.Mutex
	until map[ref.Agent]time.Time
}

// newAiling calls well for each agent that is to be tried again.
func NewBackoff(clk clock.Clock, well func(ref.Agent)) *Backoff {
	a := &Backoff{clk: clk, onRetry: well, until: map[ref.Agent]time.Time{}}
	a.due = clock.NewDue(clk, a.expire)
	return a
}

func dueKey(k ref.Agent) string { return k.Namespace + "\x00" + k.ID }

// failed passes an agent over, for longer the longer the attempt took.
func (a *Backoff) Failed(k ref.Agent, took time.Duration) {
	until := a.clk.Now().Add(max(MinBackoff, backoffFactor*took))
	a.mu.Lock()
	a.until[k] = until
	a.mu.Unlock()
	a.due.Set(dueKey(k), until)
}

// passed says whether an agent is passed over now.
func (a *Backoff) Contains(k ref.Agent) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.until[k]
	return ok
}

// taken forgets an agent whose turn could be prepared.
func (a *Backoff) Succeeded(k ref.Agent) {
	a.mu.Lock()
	_, was := a.until[k]
	delete(a.until, k)
	a.mu.Unlock()
	if was {
		a.due.Remove(dueKey(k))
	}
}

func (a *Backoff) expire(keys []string) {
	for _, dk := range keys {
		namespace, id, _ := strings.Cut(dk, "\x00")
		k := ref.Agent{Namespace: namespace, ID: id}
		a.mu.Lock()
		at, ok := a.until[k]
		if ok && !at.After(a.clk.Now()) {
			delete(a.until, k)
		}
		a.mu.Unlock()
		a.onRetry(k)
	}
}

// Start begins to end pauses that are over.
func (a *Backoff) Start() { a.due.Start() }

// Stop ends that: no agent is retried any more.
func (a *Backoff) Stop() { a.due.Stop() }

// Wait returns when every pause that is over by the clock has ended.
func (a *Backoff) Wait() { a.due.Settle() }

// RetryAt returns when an agent is retried, and false if it is not skipped.
func (a *Backoff) RetryAt(k ref.Agent) (time.Time, bool) { return a.due.At(dueKey(k)) }

// Len returns how many retries are pending.
func (a *Backoff) Len() int { return a.due.Len() }
