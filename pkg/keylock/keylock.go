// Package keylock provides a mutex for each key of a set. Goroutines that lock the same key
// exclude each other. A key that is not locked takes no memory.
package keylock

import "sync"

// Locks is a set of mutexes by key. Its zero value is ready for use.
type Locks[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*lock
}

// lock is the mutex of one key. It uses a channel, so that testing/synctest recognises a goroutine that
// waits for it as blocked.
type lock struct {
	held  chan struct{} // capacity 1; has an element while the key is locked
	users int           // goroutines that hold the lock or wait for it; guarded by Locks.mu
}

// Lock locks k, and blocks while another goroutine has it locked. The caller must call unlock exactly once.
func (l *Locks[K]) Lock(k K) (unlock func()) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[K]*lock{}
	}
	one := l.locks[k]
	if one == nil {
		one = &lock{held: make(chan struct{}, 1)}
		l.locks[k] = one
	}
	one.users++
	l.mu.Unlock()
	one.held <- struct{}{}
	return func() {
		<-one.held
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.locks, k)
		}
	}
}
