// Package runners keeps what is known in this process about the runners that wait for a
// turn: which of them to wake, which namespace is served next, which agents are
// skipped or reserved, and whether an acquired turn reached its runner. Nothing here is
// durable, and every type is safe for concurrent use.
package runners

import (
	"container/list"
	"sync"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/ref"
)

// waiters are the runners that wait for a turn. When an agent becomes ready one
// of them is woken, not all: with a thousand idle runners a broadcast would
// make each message cost a thousand looks. A runner that took a turn wakes the
// next one if there is more to take, so that no wake is lost. They are kept by
// what they serve, so that a wake looks at three of them and not at all.
type Waiters struct {
	mu          sync.Mutex
	serial      uint64
	shared      queue               // who serves every namespace
	ByNamespace map[string]queue    // by namespace, who serves all its agents
	ByAgent     map[ref.Agent]queue // who serves this agent among others
	// choosy are those that want an agent to be capable of something. Whether one
	// is, they see when they look; so they are woken beside whoever serves it
	// anyhow, and a look in vain takes no wake from anybody.
	filtered map[filterKey]queue
}

type filterKey struct {
	namespace string
	Selection
}

// line is a queue of waiters, longest waiting first. Whoever is woken leaves it.
type queue struct{ *list.List }

type Waiter struct {
	serial    uint64
	namespace string
	Woken     chan ref.Agent // one slot: the agent that it was woken for
	positions []position
}

type position struct {
	queue   queue
	element *list.Element
	onEmpty func() // the line is empty
}

// add lines a waiter up for the agents named; for all of its namespace if none
// is; for those of every namespace if shared.
func (ws *Waiters) Add(namespace string, agentIDs []string, shared bool, wants Selection) *Waiter {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.serial++
	w := &Waiter{serial: ws.serial, namespace: namespace, Woken: make(chan ref.Agent, 1)}
	switch {
	case shared:
		if ws.shared.List == nil {
			ws.shared.List = list.New()
		}
		w.join(ws.shared, func() {})
	case wants != Selection{}:
		joinQueue(w, &ws.filtered, filterKey{namespace, wants})
	case len(agentIDs) == 0:
		joinQueue(w, &ws.ByNamespace, namespace)
	default:
		seen := map[string]bool{}
		for _, id := range agentIDs {
			if !seen[id] {
				seen[id] = true
				joinQueue(w, &ws.ByAgent, ref.Agent{Namespace: namespace, ID: id})
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

// quit takes a waiter out of its lines.
func (w *Waiter) leave() {
	for _, p := range w.positions {
		p.queue.Remove(p.element)
		if p.queue.Len() == 0 {
			p.onEmpty()
		}
	}
	w.positions = nil
}

// remove takes a waiter off. If it was woken and will not look any more, its
// wake goes to another.
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

// wake tells the longest waiting runner that serves the agent to look, and says
// whether there is one.
func (ws *Waiters) Wake(k ref.Agent) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.wakeLocked(k)
}

func (ws *Waiters) wakeLocked(k ref.Agent) bool {
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
		first.Woken <- k // one slot, and whoever is in a line was not woken
	}
	for c, l := range ws.filtered {
		if c.namespace != k.Namespace {
			continue
		}
		if w, ok := l.Front().Value.(*Waiter); ok { // a line that is kept is not empty
			w.leave()
			w.Woken <- k
		}
	}
	return first != nil
}

func (ws *Waiters) serving(k ref.Agent) [3]queue {
	return [3]queue{ws.ByNamespace[k.Namespace], ws.ByAgent[k], ws.shared}
}

// count is how many runners wait that serve the agent.
func (ws *Waiters) Count(k ref.Agent, a *agentv1.Agent) int {
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
