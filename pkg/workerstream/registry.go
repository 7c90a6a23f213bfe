package workerstream

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"quartet/pkg/fault"
	"quartet/pkg/plane"
)

// maxReplaced bounds how many replaced processes of a namespace are remembered, some 400 bytes each. Beyond it
// the one that was replaced first is forgotten. No other namespace can cause that.
const maxReplaced = 4096

// Registry holds the connected workers of a plane and their free capacity. It is only in memory: which
// assignments a worker has is in the journal too. Its methods are safe for concurrent use.
type Registry[Out any] struct {
	// refuseReplaced refuses a process whose worker was taken over by a newer one,
	// see NewRegistry.
	refuseReplaced bool

	mu       sync.Mutex
	sessions map[Key]*Session[Out]
	holders  map[Key]*Session[Out]    // by namespace and id of an assignment
	replaced map[string]*replacements // by namespace, if refuseReplaced is set
}

// process is one process of a worker.
type process struct {
	worker Key
	bootID string
}

// replacements are the processes of a namespace that were replaced last, at most maxReplaced.
type replacements struct {
	known  map[process]struct{}
	order  []process // a ring once it has maxReplaced
	oldest int       // where in order
}

// has reports whether a process is among them, also for nil.
func (r *replacements) has(p process) bool {
	if r == nil {
		return false
	}
	_, has := r.known[p]
	return has
}

// add adds a process. If there are maxReplaced already, it removes the oldest.
func (r *replacements) add(p process) {
	if r.has(p) {
		return
	}
	r.known[p] = struct{}{}
	if len(r.order) < maxReplaced {
		r.order = append(r.order, p)
		return
	}
	delete(r.known, r.order[r.oldest])
	r.order[r.oldest] = p
	r.oldest = (r.oldest + 1) % maxReplaced
}

// NewRegistry returns an empty registry. With refuseReplaced, a process that was replaced by a
// newer process of the same worker may not connect again, unless maxReplaced others of its
// namespace were replaced since. Without it, two processes with the same
// worker id replace each other again and again.
func NewRegistry[Out any](refuseReplaced bool) *Registry[Out] {
	return &Registry[Out]{
		refuseReplaced: refuseReplaced, sessions: make(map[Key]*Session[Out]),
		holders: make(map[Key]*Session[Out]), replaced: make(map[string]*replacements),
	}
}

// join registers a session, and ends the worker's older session if there is one. It returns
// ALREADY_EXISTS for a process that was replaced; see NewRegistry.
func (r *Registry[Out]) join(s *Session[Out]) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	replaced := r.replaced[s.Key.Namespace]
	if replaced.has(process{s.Key, s.Hello.BootID}) {
		return fault.AlreadyExists.New("worker "+s.Key.ID+" was taken over by a newer process; this one must end, or "+
			"take another worker id",
			"worker_id", s.Key.ID, "boot_id", s.Hello.BootID)
	}
	if old := r.sessions[s.Key]; old != nil {
		if r.refuseReplaced && old.Hello.BootID != s.Hello.BootID {
			if replaced == nil {
				replaced = &replacements{known: make(map[process]struct{})}
				r.replaced[s.Key.Namespace] = replaced
			}
			replaced.add(process{s.Key, old.Hello.BootID})
		}
		old.end(fault.Cancelled.New("worker " + s.Key.ID + " connected again; this stream is not used any more"))
	}
	r.sessions[s.Key] = s
	return nil
}

// leave removes a session and its assignments from the registry. A session that replaced it, and the assignments of
// that, stay.
func (r *Registry[Out]) leave(s *Session[Out]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions[s.Key] == s {
		delete(r.sessions, s.Key)
	}
	for id := range s.assigned {
		if k := plane.KeyOf(s.Key.Namespace, id); r.holders[k] == s {
			delete(r.holders, k)
		}
	}
}

// Find returns the session of a worker, or nil.
func (r *Registry[Out]) Find(worker Key) *Session[Out] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[worker]
}

// Send queues a message for a worker, if it is connected. It never blocks.
func (r *Registry[Out]) Send(worker Key, m *Out) {
	if s := r.Find(worker); s != nil {
		s.Send(m)
	}
}

// Open returns the sessions that accept work, sorted by worker: those that were welcomed
// and for which Close was not called.
func (r *Registry[Out]) Open() []*Session[Out] {
	r.mu.Lock()
	var out []*Session[Out]
	for _, s := range r.sessions {
		if s.open {
			out = append(out, s)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(out, func(a, b *Session[Out]) int {
		return cmp.Or(cmp.Compare(a.Key.ID, b.Key.ID), cmp.Compare(a.Key.Namespace, b.Key.Namespace))
	})
	return out
}

// Close excludes a session from the sessions that Open returns. Its stream stays open, Assign still accepts it, and
// Reserve may still choose it.
func (r *Registry[Out]) Close(s *Session[Out]) { r.setOpen(s, false) }

func (r *Registry[Out]) setOpen(s *Session[Out], open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.open = open
}

// Room returns how many more assignments a worker accepts. It is negative if the
// worker has more than its capacity.
func (r *Registry[Out]) Room(s *Session[Out]) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.room()
}

// room is Room for callers that hold the registry's lock.
func (s *Session[Out]) room() int { return s.Hello.Capacity - len(s.assigned) - s.reserved }

// Assigned returns the ids of a worker's assignments, sorted.
func (r *Registry[Out]) Assigned(s *Session[Out]) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(s.assigned))
}

// Assign records that a worker has assignments. An assignment has one holder: the session that it was assigned
// to last.
func (r *Registry[Out]) Assign(s *Session[Out], ids ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.assign(s, id)
	}
}

func (r *Registry[Out]) assign(s *Session[Out], id string) {
	s.assigned[id] = struct{}{}
	r.holders[plane.KeyOf(s.Key.Namespace, id)] = s
}

// Release removes assignments, which makes room on the workers that held them. It ignores
// unknown ids.
func (r *Registry[Out]) Release(namespace string, ids ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		k := plane.KeyOf(namespace, id)
		if s := r.holders[k]; s != nil {
			delete(s.assigned, id)
			delete(r.holders, k)
		}
	}
}

// Holder returns the session of the connected worker that has an assignment, or
// nil.
func (r *Registry[Out]) Holder(namespace, id string) *Session[Out] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holders[plane.KeyOf(namespace, id)]
}

// Reservation is room for one assignment on a connected worker. Exactly one of
// Assign and Cancel ends it.
type Reservation[Out any] struct {
	registry *Registry[Out]
	Session  *Session[Out]
}

// Reserve reserves room in a pool: on the named worker, or else on the one with the most room
// and, among equals, the smallest id. A worker counts from its hello on, also before its session
// is open. NOT_FOUND means that the named worker is not connected or not in the pool, WORKER_BUSY
// that it has no room, and WORKER_POOL_BUSY that no connected worker of the pool has room, or that
// none is connected.
func (r *Registry[Out]) Reserve(namespace, pool, workerID string) (*Reservation[Out], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var best *Session[Out]
	if workerID != "" {
		s := r.sessions[plane.KeyOf(namespace, workerID)]
		switch {
		case s == nil:
			return nil, fault.NotFound.Newf("no worker %q is connected; ListWorkers shows who is", workerID).
				With("worker_id", workerID)
		case !slices.Contains(s.Hello.Pools, pool):
			return nil, fault.NotFound.Newf("worker %q is not in pool %q", workerID, pool).With("worker_id", workerID).
				With("worker_pool_id", pool)
		case s.room() <= 0:
			return nil, fault.WorkerBusy.Newf("worker %q has %d runs and room for no more", workerID, len(s.assigned)+
				s.reserved).With("worker_id", workerID)
		}
		best = s
	} else {
		members := 0
		for k, s := range r.sessions {
			if k.Namespace != namespace || !slices.Contains(s.Hello.Pools, pool) {
				continue
			}
			members++
			if s.room() > 0 && (best == nil || s.room() > best.room() || s.room() == best.room() &&
				k.ID < best.Key.ID) {
				best = s
			}
		}
		if best == nil {
			return nil, fault.WorkerPoolBusy.Newf("none of the %d connected workers of pool %q has room for a run",
				members, pool).With("worker_pool_id", pool)
		}
	}
	best.reserved++
	return &Reservation[Out]{r, best}, nil
}

// Assign turns the reservation into an assignment. It reports false, and cancels
// the reservation, if the worker's session was replaced or ended, or has the
// assignment already.
func (v *Reservation[Out]) Assign(id string) bool {
	r, s := v.registry, v.Session
	r.mu.Lock()
	defer r.mu.Unlock()
	s.reserved--
	if _, has := s.assigned[id]; has || r.sessions[s.Key] != s {
		return false
	}
	r.assign(s, id)
	return true
}

// Cancel releases the reserved room.
func (v *Reservation[Out]) Cancel() {
	v.registry.mu.Lock()
	defer v.registry.mu.Unlock()
	v.Session.reserved--
}
