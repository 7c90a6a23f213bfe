package plane

import "sync"

// KeyLocks is a set of mutexes by key: goroutines that lock the same key exclude each other, and a key that is not
// locked takes no memory. Its zero value is ready for use.
type KeyLocks[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*lock
}

// lock is the mutex of one key. It uses a channel, so that testing/synctest recognises a goroutine that
// waits for it as blocked.
type lock struct {
	held  chan struct{} // capacity 1; has an element while the key is locked
	users int           // goroutines that hold the lock or wait for it; guarded by KeyLocks.mu
}

// Lock locks k, and blocks while another goroutine has it locked. The caller must call unlock exactly once.
func (l *KeyLocks[K]) Lock(k K) (unlock func()) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[K]*lock{}
	}
	keyLock := l.locks[k]
	if keyLock == nil {
		keyLock = &lock{held: make(chan struct{}, 1)}
		l.locks[k] = keyLock
	}
	keyLock.users++
	l.mu.Unlock()
	keyLock.held <- struct{}{}
	return func() {
		<-keyLock.held
		l.mu.Lock()
		defer l.mu.Unlock()
		keyLock.users--
		if keyLock.users == 0 {
			delete(l.locks, k)
		}
	}
}
