package runners

import (
	"strings"
	"sync"
	"time"

	"quartet/pkg/clock"
	"quartet/pkg/plane"
)

const (
	// MinBackoff is the least time for which an agent is skipped after a turn of it could
	// not be prepared.
	MinBackoff = time.Second
	// backoffFactor makes the pause this many times as long as the attempt took, so that
	// an agent whose calls hang occupies at most one runner in eleven.
	backoffFactor = 10
)

// Backoff holds the agents whose turn could not be prepared, and until when runners skip
// them. Without it every runner would try such an agent first, since it has been ready
// longest, and serve no other agent (SPEC D5).
type Backoff struct {
	clk     clock.Clock
	due     *clock.Due
	onRetry func(plane.Key)

	mu    sync.Mutex
	until map[plane.Key]time.Time
}

// NewBackoff returns an empty Backoff. Once started, the Backoff calls onRetry for each agent
// whose pause has ended, from its own goroutine and without holding a lock.
func NewBackoff(clk clock.Clock, onRetry func(plane.Key)) *Backoff {
	a := &Backoff{clk: clk, onRetry: onRetry, until: map[plane.Key]time.Time{}}
	a.due = clock.NewDue(clk, a.expire)
	return a
}

func dueKey(k plane.Key) string { return k.Namespace + "\x00" + k.ID }

// Failed makes runners skip an agent from now on for backoffFactor times took, the time that the
// failed attempt took, but at least for MinBackoff.
func (a *Backoff) Failed(k plane.Key, took time.Duration) {
	until := a.clk.Now().Add(max(MinBackoff, backoffFactor*took))
	a.mu.Lock()
	a.until[k] = until
	a.mu.Unlock()
	a.due.Set(dueKey(k), until)
}

// Contains reports whether an agent is skipped now.
func (a *Backoff) Contains(k plane.Key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.until[k]
	return ok
}

// Succeeded forgets an agent whose turn could be prepared.
func (a *Backoff) Succeeded(k plane.Key) {
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
		k := plane.Key{Namespace: namespace, ID: id}
		a.mu.Lock()
		at, ok := a.until[k]
		if ok && !at.After(a.clk.Now()) {
			delete(a.until, k)
		}
		a.mu.Unlock()
		a.onRetry(k)
	}
}

// Start begins to end pauses when they are over.
func (a *Backoff) Start() { a.due.Start() }

// Stop undoes Start: the agents that are skipped then stay skipped.
func (a *Backoff) Stop() { a.due.Stop() }

// Wait returns when every pause that is over by the clock has ended.
func (a *Backoff) Wait() { a.due.Settle() }

// RetryAt returns when an agent is retried, and false if it is not skipped.
func (a *Backoff) RetryAt(k plane.Key) (time.Time, bool) { return a.due.At(dueKey(k)) }

// Len returns how many retries are pending.
func (a *Backoff) Len() int { return a.due.Len() }
