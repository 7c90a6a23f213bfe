package board

import (
	"sync"
	"sync/atomic"
)

type watchKey struct{ namespace, session, board string }

// watches wake those who wait for a board to change. Its zero value works. A
// board that nobody watches costs nothing.
type watches struct {
	mu      sync.Mutex
	waiting map[watchKey]chan struct{}
	n       atomic.Int64
}

func (w *watches) any() bool { return w.n.Load() > 0 }

// on gives a channel that is closed when the board changes. Whoever waits takes
// it first and looks then.
func (w *watches) on(k watchKey) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = map[watchKey]chan struct{}{}
	}
	if w.waiting[k] == nil {
		w.waiting[k] = make(chan struct{})
		w.n.Add(1)
	}
	return w.waiting[k]
}

func (w *watches) signal(k watchKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.waiting[k]; c != nil {
		close(c)
		delete(w.waiting, k)
		w.n.Add(-1)
	}
}
