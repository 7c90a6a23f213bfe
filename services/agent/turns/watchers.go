package turns

import (
	"sync"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/ref"
)

// watches are the streams that wait for news of an agent's turn.
type Watchers struct {
	Mu      sync.Mutex
	Streams map[ref.Agent]map[chan struct{}]struct{}
}

func (w *Watchers) add(k ref.Agent) (news <-chan struct{}, forget func()) {
	c := make(chan struct{}, 1)
	w.Mu.Lock()
	defer w.Mu.Unlock()
	if w.Streams == nil {
		w.Streams = map[ref.Agent]map[chan struct{}]struct{}{}
	}
	if w.Streams[k] == nil {
		w.Streams[k] = map[chan struct{}]struct{}{}
	}
	w.Streams[k][c] = struct{}{}
	return c, func() {
		w.Mu.Lock()
		defer w.Mu.Unlock()
		delete(w.Streams[k], c)
		if len(w.Streams[k]) == 0 {
			delete(w.Streams, k)
		}
	}
}

// tell signals the streams that an event is news for. It never blocks: a signal
// that waits already stands for this one.
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
	w.Mu.Lock()
	defer w.Mu.Unlock()
	for c := range w.Streams[ref.Agent{Namespace: ev.Namespace, ID: ev.AgentID}] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
