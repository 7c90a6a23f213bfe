package agent

import (
	"container/list"
	"context"
	"quartet/services/agent/ref"
	"sync"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// waiters are the runners that wait for a turn. When an agent becomes ready one
// of them is woken, not all: with a thousand idle runners a broadcast would
// make each message cost a thousand looks. A runner that took a turn wakes the
// next one if there is more to take, so that no wake is lost. They are kept by
// what they serve, so that a wake looks at three of them and not at all.
type waiters struct {
	mu     sync.Mutex
	serial uint64
	shared line            // who serves every namespace
	open   map[string]line // by namespace, who serves all its agents
	named  map[key]line    // who serves this agent among others
	// choosy are those that want an agent to be capable of something. Whether one
	// is, they see when they look; so they are woken beside whoever serves it
	// anyhow, and a look in vain takes no wake from anybody.
	choosy map[chosen]line
}

type chosen struct {
	namespace string
	choice
}

// line is a queue of waiters, longest waiting first. Whoever is woken leaves it.
type line struct{ *list.List }

type waiter struct {
	serial    uint64
	namespace string
	woken     chan key // one slot: the agent that it was woken for
	places    []place
}

type place struct {
	line line
	at   *list.Element
	gone func() // the line is empty
}

// add lines a waiter up for the agents named; for all of its namespace if none
// is; for those of every namespace if shared.
func (ws *waiters) add(namespace string, agentIDs []string, shared bool, wants choice) *waiter {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.serial++
	w := &waiter{serial: ws.serial, namespace: namespace, woken: make(chan key, 1)}
	switch {
	case shared:
		if ws.shared.List == nil {
			ws.shared.List = list.New()
		}
		w.join(ws.shared, func() {})
	case wants != choice{}:
		joinIn(w, &ws.choosy, chosen{namespace, wants})
	case len(agentIDs) == 0:
		joinIn(w, &ws.open, namespace)
	default:
		seen := map[string]bool{}
		for _, id := range agentIDs {
			if !seen[id] {
				seen[id] = true
				joinIn(w, &ws.named, ref.Agent{Namespace: namespace, ID: id})
			}
		}
	}
	return w
}

func joinIn[K comparable](w *waiter, lines *map[K]line, k K) {
	if *lines == nil {
		*lines = map[K]line{}
	}
	l, ok := (*lines)[k]
	if !ok {
		l = line{list.New()}
		(*lines)[k] = l
	}
	w.join(l, func() { delete(*lines, k) })
}

func (w *waiter) join(l line, gone func()) {
	w.places = append(w.places, place{l, l.PushBack(w), gone})
}

// quit takes a waiter out of its lines.
func (w *waiter) quit() {
	for _, p := range w.places {
		p.line.Remove(p.at)
		if p.line.Len() == 0 {
			p.gone()
		}
	}
	w.places = nil
}

// remove takes a waiter off. If it was woken and will not look any more, its
// wake goes to another.
func (ws *waiters) remove(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.quit()
	select {
	case k := <-w.woken:
		ws.wakeLocked(k)
	default:
	}
}

// wake tells the longest waiting runner that serves the agent to look, and says
// whether there is one.
func (ws *waiters) wake(k key) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.wakeLocked(k)
}

func (ws *waiters) wakeLocked(k key) bool {
	var first *waiter
	for _, l := range ws.serving(k) {
		if l.List == nil || l.Len() == 0 {
			continue
		}
		if w, ok := l.Front().Value.(*waiter); ok && (first == nil || w.serial < first.serial) {
			first = w
		}
	}
	if first != nil {
		first.quit()
		first.woken <- k // one slot, and whoever is in a line was not woken
	}
	for c, l := range ws.choosy {
		if c.namespace != k.Namespace {
			continue
		}
		if w, ok := l.Front().Value.(*waiter); ok { // a line that is kept is not empty
			w.quit()
			w.woken <- k
		}
	}
	return first != nil
}

func (ws *waiters) serving(k key) [3]line {
	return [3]line{ws.open[k.Namespace], ws.named[k], ws.shared}
}

// count is how many runners wait that serve the agent.
func (ws *waiters) count(k key, a *agentv1.Agent) int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	n := 0
	for _, l := range ws.serving(k) {
		if l.List != nil {
			n += l.Len()
		}
	}
	for c, l := range ws.choosy {
		if c.namespace == k.Namespace && c.admits(a) {
			n += l.Len()
		}
	}
	return n
}

// wakeNext passes a wake on: another agent of the namespace may be ready.
func (s *Service) wakeNext(ctx context.Context, namespace string) {
	ctx = context.WithoutCancel(ctx)
	for _, p := range s.engine.All() {
		// A failed look loses no wake: the next commit or poll wakes again.
		next, _, err := journal.View(ctx, p, func(st *State) ([]key, error) {
			var ready []key
			if t := st.ready[namespace]; t != nil {
				t.Ascend(func(r readyAgent) bool {
					if k := (ref.Agent{Namespace: namespace, ID: r.id}); !s.reserved(k) && !s.ailing.passed(k) {
						ready = append(ready, k)
					}
					return len(ready) < 8
				})
			}
			return ready, nil
		})
		if err != nil {
			return
		}
		for _, k := range next {
			s.waiters.wake(k)
		}
	}
}

// reserve keeps an agent for one runner of this process while its context is
// prepared. It guards no invariant; the journal does.
func (s *Service) reserve(k key) bool {
	s.reservedMu.Lock()
	defer s.reservedMu.Unlock()
	if _, taken := s.reservations[k]; taken {
		return false
	}
	s.reservations[k] = struct{}{}
	return true
}

func (s *Service) reserved(k key) bool {
	s.reservedMu.Lock()
	defer s.reservedMu.Unlock()
	_, taken := s.reservations[k]
	return taken
}

func (s *Service) unreserve(k key) {
	s.reservedMu.Lock()
	defer s.reservedMu.Unlock()
	delete(s.reservations, k)
}
