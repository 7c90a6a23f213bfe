// Package watch lets goroutines wait for changes of something that a key names, such as a task
// or a board.
//
// A notification has no data; it means that the subscriber should read again. Several
// notifications that arrive before the subscriber receives are merged into one. A subscriber
// that subscribes, then reads, and reads again after each notification misses no change:
//
//	sub := hub.Subscribe(key)
//	defer sub.Close()
//	for {
//		if done := read(); done {
//			return
//		}
//		select {
//		case <-sub.C():
//		case <-hub.Stopped():
//			return
//		}
//	}
package watch

import (
	"sync"
	"sync/atomic"
)

// Hub holds the subscriptions of a service. Its zero value is ready for use, and
// all methods are safe for concurrent use.
type Hub[K comparable] struct {
	mu      sync.Mutex
	byKey   map[K]map[*Subscription[K]]struct{}
	stopped chan struct{} // made on first use, closed by Stop
	ended   bool
	count   atomic.Int64 // subscriptions that are open
}

// Subscription receives the notifications of one key.
type Subscription[K comparable] struct {
	hub *Hub[K]
	key K
	c   chan struct{} // capacity 1
}

// Subscribe begins to receive the notifications of key. The caller must call
// Close.
func (h *Hub[K]) Subscribe(key K) *Subscription[K] {
	s := &Subscription[K]{hub: h, key: key, c: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byKey == nil {
		h.byKey = make(map[K]map[*Subscription[K]]struct{})
	}
	if h.byKey[key] == nil {
		h.byKey[key] = make(map[*Subscription[K]]struct{})
	}
	h.byKey[key][s] = struct{}{}
	h.count.Add(1)
	return s
}

// C returns the channel on which notifications arrive.
func (s *Subscription[K]) C() <-chan struct{} { return s.c }

// Close ends the subscription. It is idempotent.
func (s *Subscription[K]) Close() {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	subs := h.byKey[s.key]
	if _, open := subs[s]; !open {
		return
	}
	delete(subs, s)
	if len(subs) == 0 {
		delete(h.byKey, s.key)
	}
	h.count.Add(-1)
}

// Active reports whether there is any subscription. It takes no lock, so that a
// writer can skip its notifications at the cost of one atomic load.
func (h *Hub[K]) Active() bool { return h.count.Load() > 0 }

// Notify wakes the subscribers of key. It never blocks on a subscriber.
func (h *Hub[K]) Notify(key K) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.byKey[key] {
		select {
		case s.c <- struct{}{}:
		default: // a notification is pending already
		}
	}
}

// Stop closes the channel that Stopped returns, so that every wait ends. It is
// idempotent. Subscriptions stay open until their Close.
func (h *Hub[K]) Stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.init()
	if !h.ended {
		h.ended = true
		close(h.stopped)
	}
}

// Stopped returns a channel that Stop closes.
func (h *Hub[K]) Stopped() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.init()
	return h.stopped
}

// init creates the channel of Stopped. The caller holds mu.
func (h *Hub[K]) init() {
	if h.stopped == nil {
		h.stopped = make(chan struct{})
	}
}
