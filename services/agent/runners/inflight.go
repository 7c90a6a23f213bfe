package runners

import (
	"sync"

	"quartet/services/agent/ref"
)

// asking are the calls of AcquireTurn that wait with a request id. The same
// request may wait twice, when its client gave the first call up: what one of
// them is granted is the other's answer too (SPEC X2).
type Inflight struct {
	mu    sync.Mutex
	calls map[ref.Request]map[chan struct{}]struct{}
}

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

// tell says that a request was granted a turn. It never blocks.
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
