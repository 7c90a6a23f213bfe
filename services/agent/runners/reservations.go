package runners

import (
	"sync"

	"quartet/pkg/plane"
)

// Reservations are the agents for which a runner of this process is preparing a turn, so
// that runners that call at the same time do not all prepare the context of one agent.
// They guard no invariant; the journal does. The zero value is ready to use.
type Reservations struct {
	mu    sync.Mutex
	holds map[plane.Key]struct{}
}

// Take reserves an agent. It reports false if the agent is reserved already.
func (r *Reservations) Take(k plane.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.holds[k]; ok {
		return false
	}
	if r.holds == nil {
		r.holds = map[plane.Key]struct{}{}
	}
	r.holds[k] = struct{}{}
	return true
}

// Contains reports whether an agent is reserved.
func (r *Reservations) Contains(k plane.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.holds[k]
	return ok
}

// Release ends a reservation.
func (r *Reservations) Release(k plane.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.holds, k)
}

// Len returns how many agents are reserved.
func (r *Reservations) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.holds)
}
