// Package runners keeps what is known in this process about the runners that wait for a
// turn: which of them to wake, which namespace is served next, which agents are
// skipped or reserved, whether an acquired turn reached its runner, and the leases of open turns. Nothing here is
// durable, and every type is safe for concurrent use.
package runners

import (
	"container/list"
	"sync"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

// Waiters are the runners that wait for a turn. When an agent becomes ready not all of them
// are woken, but one that serves it, and one for each selection by capability in its
// namespace: with a thousand idle runners a broadcast would make each message cost a
// thousand searches. An AcquireTurn that ends with a turn wakes runners for other ready
// agents, so no wake is lost. Waiters are kept by what they serve, so a wake inspects three
// queues and those of the selections.
type Waiters struct {
	mu          sync.Mutex
	serial      uint64
	shared      queue               // runners that serve every namespace
	byNamespace map[string]queue    // runners that serve all agents of a namespace
	byAgent     map[plane.Key]queue // runners that serve this agent among others
	// filtered are the runners that select agents by capability. They find only when they search
	// whether an agent matches. So they are woken in addition to a runner that serves the agent in
	// any case, and a search in vain takes no wake from another runner.
	filtered map[filterKey]queue
}

type filterKey struct {
	namespace string
	Selection
}

// queue holds waiters, longest waiting first. A waiter that is woken leaves it.
type queue struct{ *list.List }

// Waiter is an AcquireTurn call that waits for an agent.
type Waiter struct {
	serial    uint64
	namespace string
	Woken     chan plane.Key // one slot: the agent that the waiter was woken for
	positions []position
}

type position struct {
	queue   queue
	element *list.Element
	onEmpty func() // called when the queue has become empty
}

// Add enqueues a waiter: for all agents of every namespace if shared is set; else for those of its
// namespace that wants selects, if wants is not zero; else for the named agents; for all agents of its
// namespace if none is named.
func (ws *Waiters) Add(namespace string, agentIDs []string, shared bool, wants Selection) *Waiter {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.serial++
	w := &Waiter{serial: ws.serial, namespace: namespace, Woken: make(chan plane.Key, 1)}
	switch {
	case shared:
		if ws.shared.List == nil {
			ws.shared.List = list.New()
		}
		w.join(ws.shared, func() {})
	case wants != Selection{}:
		joinQueue(w, &ws.filtered, filterKey{namespace, wants})
	case len(agentIDs) == 0:
		joinQueue(w, &ws.byNamespace, namespace)
	default:
		seen := map[string]bool{}
		for _, id := range agentIDs {
			if !seen[id] {
				seen[id] = true
				joinQueue(w, &ws.byAgent, plane.Key{Namespace: namespace, ID: id})
			}
		}
	}
	return w
}

func joinQueue[K comparable](w *Waiter, lines *map[K]queue, k K) {
	if *lines == nil {
		*lines = map[K]queue{}
	}
	l, ok := (*lines)[k]
	if !ok {
		l = queue{list.New()}
		(*lines)[k] = l
	}
	w.join(l, func() { delete(*lines, k) })
}

func (w *Waiter) join(l queue, gone func()) {
	w.positions = append(w.positions, position{l, l.PushBack(w), gone})
}

// leave removes a waiter from its queues.
func (w *Waiter) leave() {
	for _, p := range w.positions {
		p.queue.Remove(p.element)
		if p.queue.Len() == 0 {
			p.onEmpty()
		}
	}
	w.positions = nil
}

// Remove removes a waiter. If Woken still has the agent that the waiter was woken for, Remove wakes
// another waiter for that agent.
func (ws *Waiters) Remove(w *Waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.leave()
	select {
	case k := <-w.Woken:
		ws.wakeLocked(k)
	default:
	}
}

// Wake wakes the longest waiting runner that serves an agent, and the longest waiting one of each
// selection by capability in the agent's namespace. A runner that is woken leaves its queues. Wake
// reports whether there was one of the first kind: a selection need not match the agent.
func (ws *Waiters) Wake(k plane.Key) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.wakeLocked(k)
}

func (ws *Waiters) wakeLocked(k plane.Key) bool {
	var first *Waiter
	for _, l := range ws.serving(k) {
		if l.List == nil || l.Len() == 0 {
			continue
		}
		if w, ok := l.Front().Value.(*Waiter); ok && (first == nil || w.serial < first.serial) {
			first = w
		}
	}
	if first != nil {
		first.leave()
		first.Woken <- k // never blocks: a waiter in a queue has not been woken
	}
	for c, l := range ws.filtered {
		if c.namespace != k.Namespace {
			continue
		}
		if w, ok := l.Front().Value.(*Waiter); ok { // a queue that is kept is not empty
			w.leave()
			w.Woken <- k
		}
	}
	return first != nil
}

func (ws *Waiters) serving(k plane.Key) [3]queue {
	return [3]queue{ws.byNamespace[k.Namespace], ws.byAgent[k], ws.shared}
}

// Count returns how many waiting runners serve an agent.
func (ws *Waiters) Count(k plane.Key, a *agentv1.Agent) int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	n := 0
	for _, l := range ws.serving(k) {
		if l.List != nil {
			n += l.Len()
		}
	}
	for c, l := range ws.filtered {
		if c.namespace == k.Namespace && c.Matches(a) {
			n += l.Len()
		}
	}
	return n
}
