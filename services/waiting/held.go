package waiting

import (
	"maps"
	"slices"
	"sync"

	"quartet/pkg/plane"
)

// heldTimers holds the due keys of timers that became due while their agent was stopped, by agent.
// They fire when it starts. After a restart of the process they become due again and are held
// again. Its methods may be called concurrently. Its zero value is ready.
type heldTimers struct {
	mu   sync.Mutex
	keys map[plane.Key]map[string]bool
}

// Add holds the due key of a timer of an agent.
func (h *heldTimers) Add(k plane.Key, due string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keys == nil {
		h.keys = map[plane.Key]map[string]bool{}
	}
	if h.keys[k] == nil {
		h.keys[k] = map[string]bool{}
	}
	h.keys[k][due] = true
}

// Remove ends the holding of one due key.
func (h *heldTimers) Remove(k plane.Key, due string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.keys[k], due); len(h.keys[k]) == 0 {
		delete(h.keys, k)
	}
}

// Release ends the holding of all due keys of an agent, and returns them in order.
func (h *heldTimers) Release(k plane.Key) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := slices.Sorted(maps.Keys(h.keys[k]))
	delete(h.keys, k)
	return keys
}
