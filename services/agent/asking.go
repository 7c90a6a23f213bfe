package agent

import "sync"

// asking are the calls of AcquireTurn that wait with a request id. The same
// request may wait twice, when its client gave the first call up: what one of
// them is granted is the other's answer too (SPEC X2).
type asking struct {
	mu sync.Mutex
	of map[acquireKey]map[chan struct{}]struct{}
}

func (a *asking) add(k acquireKey) (granted <-chan struct{}, forget func()) {
	c := make(chan struct{}, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = map[acquireKey]map[chan struct{}]struct{}{}
	}
	if a.of[k] == nil {
		a.of[k] = map[chan struct{}]struct{}{}
	}
	a.of[k][c] = struct{}{}
	return c, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.of[k], c)
		if len(a.of[k]) == 0 {
			delete(a.of, k)
		}
	}
}

// tell says that a request was granted a turn. It never blocks.
func (a *asking) tell(k acquireKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.of[k] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
