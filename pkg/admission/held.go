package admission

import (
	"context"
	"sync"
)

// key identifies a holder.
type key struct{ kind, name string }

// Use names a holder, by kind and name, and the most that it may hold; 0 means no limit.
type Use struct {
	Kind, Name string
	Limit      int64
}

// Held bounds the amount of something that is held at a time, in total and by each holder. It is safe
// for concurrent use.
type Held struct {
	total int64

	mu    sync.Mutex
	all   int64
	keys  map[key]int64
	freed chan struct{} // closed and replaced when something is given back
}

// NewHeld returns a Held whose holders may together hold total; 0 means no limit.
func NewHeld(total int64) *Held {
	return &Held{total: total, keys: map[key]int64{}, freed: make(chan struct{})}
}

// Take adds n to the total and to what the holder of each use holds. It returns a function that subtracts
// n again; further calls of it do nothing. If a limit would be exceeded, Take adds nothing and returns
// false with the use whose limit it is, or nil for the limit of the total.
func (h *Held) Take(n int64, uses ...Use) (release func(), above *Use, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, u := range uses {
		if u.Limit > 0 && h.keys[key{u.Kind, u.Name}]+n > u.Limit {
			return func() {}, &uses[i], false
		}
	}
	if h.total > 0 && h.all+n > h.total {
		return func() {}, nil, false
	}
	h.all += n
	for _, u := range uses {
		h.keys[key{u.Kind, u.Name}] += n
	}
	return sync.OnceFunc(func() { h.give(n, uses) }), nil, true
}

// Wait does what Take does, but blocks until n can be held. It returns the error of ctx if that ends first.
// Waiters are served in no particular order. Only the limits in uses prevent one holder from taking
// everything that becomes free.
func (h *Held) Wait(ctx context.Context, n int64, uses ...Use) (release func(), err error) {
	for {
		h.mu.Lock()
		freed := h.freed
		h.mu.Unlock()
		if release, _, ok := h.Take(n, uses...); ok {
			return release, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// give subtracts what Take added.
func (h *Held) give(n int64, uses []Use) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all -= n
	for _, u := range uses {
		k := key{u.Kind, u.Name}
		if h.keys[k] -= n; h.keys[k] <= 0 {
			delete(h.keys, k)
		}
	}
	close(h.freed)
	h.freed = make(chan struct{})
}

// All returns the total that is held.
func (h *Held) All() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all
}
