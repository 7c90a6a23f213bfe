package turns

import (
	"sync"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/ref"
)

// Watchers are the streams that wait for changes of an agent's turn.
type Watchers struct {
	mu      sync.Mutex
	streams map[ref.Agent]map[chan struct{}]struct{}
}

func (w *Watchers) add(k ref.Agent) (changed <-chan struct{}, forget func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams == nil {
		w.streams = map[ref.Agent]map[chan struct{}]struct{}{}
	}
	if w.streams[k] == nil {
		w.streams[k] = map[chan struct{}]struct{}{}
	}
	w.streams[k][c] = struct{}{}
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.streams[k], c)
		if len(w.streams[k]) == 0 {
			delete(w.streams, k)
		}
	}
}

// Notify signals the streams for which an event matters. It never blocks: a signal that
// is pending covers this one.
func (w *Watchers) Notify(ev *journal.Event) {
	switch p := ev.Payload.(type) {
	case *agentv1.MessageQueued:
		if p.GetMessage().GetPriority() != agentv1.Priority_PRIORITY_INTERJECT {
			return
		}
	case *agentv1.TurnCompleted, *agentv1.TurnFailed, *agentv1.TurnInterrupted, *agentv1.TurnAborted:
	default:
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.streams[ref.Agent{Namespace: ev.Namespace, ID: ev.AgentID}] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Len returns how many agents are watched.
func (w *Watchers) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.streams)
}
