package rpc

import "sync"

// recent is a bounded cache of two generations: when the young one is full it
// becomes the old one, and entries that were not read meanwhile are dropped. A hit in the young
// one takes one read lock, where an exact LRU would write on every read. It holds up to two
// times size entries.
type recent[K comparable, V any] struct {
	mu         sync.RWMutex
	young, old map[K]V
	size       int // of a generation
}

func newRecent[K comparable, V any](size int) *recent[K, V] {
	return &recent[K, V]{young: make(map[K]V), size: size}
}

// get returns what was put under k and is kept. If only the old generation has it, get puts it into the young one.
func (r *recent[K, V]) get(k K) (V, bool) {
	r.mu.RLock()
	v, ok := r.young[k]
	if ok {
		r.mu.RUnlock()
		return v, true
	}
	v, ok = r.old[k]
	r.mu.RUnlock()
	if ok {
		r.put(k, v)
	}
	return v, ok
}

// put keeps v under k. If the young generation is full, it becomes the old one first.
func (r *recent[K, V]) put(k K, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.young) >= r.size {
		r.old, r.young = r.young, make(map[K]V)
	}
	r.young[k] = v
}

func (r *recent[K, V]) len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.young) + len(r.old)
}
