// Package keylock provides a mutex for each key of a set. Goroutines that lock the same key
// exclude each other. A key that is not locked takes no memory.
package keylock

import "sync"

// Locks is a set of mutexes by key. Its zero value is ready for use.
type Locks[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*lock
}

// lock is held while its channel has an element. It is a channel and no mutex, so that testing/synctest
// knows of a goroutine that waits for it.
type lock struct {
	held  chan struct{} // capacity 1
	users int
}

// Lock locks k and returns the function that unlocks it.
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
