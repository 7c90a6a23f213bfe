package agent

import (
	"context"
	"slices"
	"sync"

	"quartet/pkg/journal"
)

// waiters are the runners that wait for a turn. When an agent becomes ready one
// of them is woken, not all: with a thousand idle runners a broadcast would
// make each message cost a thousand looks. A runner that took a turn wakes the
// next one if there is more to take, so that no wake is lost.
type waiters struct {
	mu   sync.Mutex
	list []*waiter
}

type waiter struct {
	namespace string
	agentIDs  []string
	woken     chan string // one slot: the agent that it was woken for
}

func (ws *waiters) add(namespace string, agentIDs []string) *waiter {
	w := &waiter{namespace: namespace, agentIDs: agentIDs, woken: make(chan string, 1)}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.list = append(ws.list, w)
	return w
}

// remove takes a waiter off. If it was woken and will not look any more, its
// wake goes to another.
func (ws *waiters) remove(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if i := slices.Index(ws.list, w); i >= 0 {
		ws.list = slices.Delete(ws.list, i, i+1)
	}
	select {
	case agentID := <-w.woken:
		ws.wakeLocked(w.namespace, agentID)
	default:
	}
}

// wake tells the longest waiting runner that serves the agent to look.
func (ws *waiters) wake(namespace, agentID string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.wakeLocked(namespace, agentID)
}

func (ws *waiters) wakeLocked(namespace, agentID string) {
	for _, w := range ws.list {
		if w.namespace != namespace || len(w.agentIDs) > 0 && !slices.Contains(w.agentIDs, agentID) {
			continue
		}
		select {
		case w.woken <- agentID:
			return
		default: // woken already, for another agent
		}
	}
}

// wakeNext passes a wake on: another agent of the namespace may be ready.
func (s *Service) wakeNext(ctx context.Context, namespace string) {
	ctx = context.WithoutCancel(ctx)
	for _, p := range s.engine.All() {
		// A failed look loses no wake: the next commit or poll wakes again.
		next, _, err := journal.View(ctx, p, func(st *State) ([]string, error) {
			var ready []string
			if t := st.ready[namespace]; t != nil {
				t.Ascend(func(r readyAgent) bool {
					if !s.reserved(key{namespace, r.id}) {
						ready = append(ready, r.id)
					}
					return len(ready) < 8
				})
			}
			return ready, nil
		})
		if err != nil {
			return
		}
		for _, agentID := range next {
			s.waiters.wake(namespace, agentID)
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
