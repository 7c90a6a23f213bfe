// Package keylock is a lock for each of many names: those who name the same
// thing go one after the other, others do not wait. A name that nobody holds
// takes no memory.
package keylock

import "sync"

// Locks is a set of locks. Its zero value works.
type Locks[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*lock
}

type lock struct {
	mu    sync.Mutex
	users int
}

// Lock waits until nobody else holds k.
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
