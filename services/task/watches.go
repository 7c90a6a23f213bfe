package task

import (
	"sync"
)

// watches wakes those who wait for a task: for its end or for its output. A
// signal says only "look again"; several may melt into one.
type watches struct {
	mu sync.Mutex
	on map[string]map[*watch]struct{}
}

// watch is one waiter. Whoever looks at the task after add, and again after
// each receive from c, misses nothing.
type watch struct {
	c    chan struct{}
	task string
	of   *watches
}

func newWatches() *watches { return &watches{on: make(map[string]map[*watch]struct{})} }

func (w *watches) add(taskID string) *watch {
	one := &watch{c: make(chan struct{}, 1), task: taskID, of: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.on[taskID] == nil {
		w.on[taskID] = make(map[*watch]struct{})
	}
	w.on[taskID][one] = struct{}{}
	return one
}

func (one *watch) remove() {
	one.of.mu.Lock()
	defer one.of.mu.Unlock()
	delete(one.of.on[one.task], one)
	if len(one.of.on[one.task]) == 0 {
		delete(one.of.on, one.task)
	}
}

// signal never blocks.
func (w *watches) signal(taskID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.on[taskID] {
		select {
		case one.c <- struct{}{}:
		default:
		}
	}
}
