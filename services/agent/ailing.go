package agent

import (
	"quartet/services/agent/ref"
	"strings"
	"sync"
	"time"

	"quartet/pkg/clock"
)

const (
	// failedPause is the least time for which an agent is passed over whose turn
	// could not be prepared.
	failedPause = time.Second
	// failedShare bounds what such an agent costs: it is passed over for this
	// many times as long as the attempt took, so that one whose calls hang holds
	// at most one runner in eleven, and only while nobody else does better.
	failedShare = 10
)

// ailing are the agents whose turn could not be prepared, and until when every
// runner passes them over. One agent's trouble keeps no runner from another
// agent (SPEC D5): without this each runner would try the sick one first, since
// it has been ready longest.
type ailing struct {
	clk  clock.Clock
	due  *clock.Due
	well func(key)

	mu    sync.Mutex
	until map[key]time.Time
}

// newAiling calls well for each agent that is to be tried again.
func newAiling(clk clock.Clock, well func(key)) *ailing {
	a := &ailing{clk: clk, well: well, until: map[key]time.Time{}}
	a.due = clock.NewDue(clk, a.over)
	return a
}

func ailingKey(k key) string { return k.Namespace + "\x00" + k.ID }

// failed passes an agent over, for longer the longer the attempt took.
func (a *ailing) failed(k key, took time.Duration) {
	until := a.clk.Now().Add(max(failedPause, failedShare*took))
	a.mu.Lock()
	a.until[k] = until
	a.mu.Unlock()
	a.due.Set(ailingKey(k), until)
}

// passed says whether an agent is passed over now.
func (a *ailing) passed(k key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.until[k]
	return ok
}

// taken forgets an agent whose turn could be prepared.
func (a *ailing) taken(k key) {
	a.mu.Lock()
	_, was := a.until[k]
	delete(a.until, k)
	a.mu.Unlock()
	if was {
		a.due.Remove(ailingKey(k))
	}
}

func (a *ailing) over(keys []string) {
	for _, dk := range keys {
		namespace, id, _ := strings.Cut(dk, "\x00")
		k := ref.Agent{Namespace: namespace, ID: id}
		a.mu.Lock()
		at, ok := a.until[k]
		if ok && !at.After(a.clk.Now()) {
			delete(a.until, k)
		}
		a.mu.Unlock()
		a.well(k)
	}
}
