package runners

import (
	"sync"

	"quartet/services/agent/ref"
)

// Inflight holds the calls of AcquireTurn with a request id that are waiting. A request
// may be waiting twice, if its client abandoned the first call; a turn that either of
// them gets is the response of both (SPEC X2).
type Inflight struct {
	mu    sync.Mutex
	calls map[ref.Request]map[chan struct{}]struct{}
}

// Add registers a call of a request. granted receives when any call of the same request gets
// a turn. The caller must call forget when it is done.
func (a *Inflight) Add(k ref.Request) (granted <-chan struct{}, forget func()) {
	c := make(chan struct{}, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls = map[ref.Request]map[chan struct{}]struct{}{}
	}
	if a.calls[k] == nil {
		a.calls[k] = map[chan struct{}]struct{}{}
	}
	a.calls[k][c] = struct{}{}
	return c, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.calls[k], c)
		if len(a.calls[k]) == 0 {
			delete(a.calls, k)
		}
	}
}

// Notify signals that a request got a turn. It never blocks.
func (a *Inflight) Notify(k ref.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.calls[k] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
