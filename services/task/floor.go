package task

import (
	"sync"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// floor is where the connected workers stand: one session for each worker.
type floor struct {
	mu       sync.Mutex
	sessions map[model.WorkerKey]*session
	// former are the process lives that a newer one of the same worker has
	// replaced. They may not come back, or two processes with one worker id
	// would interrupt each other's commands for ever.
	former map[model.WorkerKey]map[string]struct{}
	kick   chan struct{} // capacity 1: look for commands to hand out
}

// maxFormer bounds the memory of former lives of one worker.
const maxFormer = 64

func newFloor() *floor {
	return &floor{
		sessions: make(map[model.WorkerKey]*session),
		former:   make(map[model.WorkerKey]map[string]struct{}),
		kick:     make(chan struct{}, 1),
	}
}

// poke wakes the dispatcher.
func (f *floor) poke() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// join puts a session in the place of the worker's earlier one, which ends. It
// is false for a process life that was replaced before.
func (f *floor) join(se *session) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, gone := f.former[se.worker][se.bootID]; gone {
		return false
	}
	if old := f.sessions[se.worker]; old != nil {
		if old.bootID != se.bootID {
			if f.former[se.worker] == nil || len(f.former[se.worker]) >= maxFormer {
				f.former[se.worker] = make(map[string]struct{})
			}
			f.former[se.worker][old.bootID] = struct{}{}
		}
		old.end(errReplaced(se))
	}
	f.sessions[se.worker] = se
	return true
}

// leave takes a session away, unless another took its place.
func (f *floor) leave(se *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sessions[se.worker] == se {
		delete(f.sessions, se.worker)
	}
}

// find gives the session of a worker, or nil.
func (f *floor) find(worker model.WorkerKey) *session {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sessions[worker]
}

// send hands a message to a worker if it is connected. It never blocks.
func (f *floor) send(worker model.WorkerKey, m *taskv1.ConnectResponse) {
	if se := f.find(worker); se != nil {
		se.send(m)
	}
}

// slots gives the workers that may take commands.
func (f *floor) slots() []model.WorkerSlot {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []model.WorkerSlot
	for key, se := range f.sessions {
		if se.ready && se.capacity > 0 {
			out = append(out, model.WorkerSlot{Worker: key, BootID: se.bootID, Capacity: se.capacity, Pools: se.pools, Labels: se.labels})
		}
	}
	return out
}

// shut keeps a session from taking more commands.
func (f *floor) shut(se *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	se.ready = false
}

// open lets a session take commands.
func (f *floor) open(se *session) {
	f.mu.Lock()
	se.ready = true
	f.mu.Unlock()
	f.poke()
}
