// Package keylock provides a mutex for each key of a set. Goroutines that lock the same key
// exclude each other. A key that is not locked takes no memory.
package keylock

import "sync"

// Locks is a set of mutexes by key. Its zero value is ready for use.
type Locks[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*lock
}

type lock struct {
	mu    sync.Mutex
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
		one = &lock{}
		l.locks[k] = one
	}
	one.users++
	l.mu.Unlock()
	one.mu.Lock()
	return func() {
		one.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.locks, k)
		}
	}
}
