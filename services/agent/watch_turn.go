package agent

import (
	"quartet/services/agent/ref"
	"sync"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// keepalive is how long a watch stays silent: both sides notice a dead
// connection within it.
const keepalive = 15 * time.Second

// WatchTurn tells a runner at once what happens to its open turn: that an
// operator's message waits for the next safe point, and that the turn has ended
// (SPEC A7, A9). Announcing hands nothing over; the answer of SubmitRound does.
func (s *Service) WatchTurn(req *agentv1.WatchTurnRequest, stream grpc.ServerStreamingServer[agentv1.WatchTurnResponse]) error {
	ctx := stream.Context()
	actor := rpc.ActorFrom(ctx)
	if err := admitRun(actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId()); err != nil {
		return err
	}
	k := ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()}
	news, forget := s.watches.add(k)
	defer forget()
	announced := map[string]bool{}
	for first := true; ; first = false {
		seen, _, err := plane.View(ctx, s.engine, k.ID, func(st *State) (*agentv1.WatchTurnResponse, error) {
			return st.watched(k, req, announced)
		})
		if err != nil {
			return err
		}
		if first {
			// The empty beginning says that the watch stands: what comes later
			// is not missed.
			if err := stream.Send(&agentv1.WatchTurnResponse{}); err != nil {
				return err
			}
		}
		for _, m := range seen.GetInterjections() {
			announced[m.GetMessageId()] = true
		}
		if len(seen.GetInterjections()) > 0 || seen.GetEnded() != nil {
			if err := stream.Send(seen); err != nil || seen.GetEnded() != nil {
				return err
			}
		}
		if err := s.untilNews(stream, news); err != nil {
			return err
		}
	}
}

// untilNews returns when the turn is to be looked at again.
func (s *Service) untilNews(stream grpc.ServerStreamingServer[agentv1.WatchTurnResponse], news <-chan struct{}) error {
	for {
		silent := s.deps.Clock.TimerAt(s.deps.Clock.Now().Add(keepalive))
		select {
		case <-news:
			silent.Stop()
			return nil
		case <-silent.C():
			if err := stream.Send(&agentv1.WatchTurnResponse{}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			silent.Stop()
			return fault.From(stream.Context().Err())
		case <-s.stopping:
			silent.Stop()
			return fault.NotReady.New("the service is stopping; watch the turn again")
		}
	}
}

// watched is what a watcher of a run was not told yet. Another run is RUN_STALE;
// the run's own end is the last thing that it is told.
func (s *State) watched(k key, req *agentv1.WatchTurnRequest, announced map[string]bool) (*agentv1.WatchTurnResponse, error) {
	a, err := s.agent(k.Namespace, k.ID)
	if err != nil {
		return nil, err
	}
	t := a.find(req.GetTurnId())
	switch {
	case t == nil:
		return nil, fault.NotFound.Newf("agent %q has no turn %q", k.ID, req.GetTurnId()).With("turn_id", req.GetTurnId())
	case t.rec.GetRunId() != req.GetRunId():
		return nil, stale(t.rec, req.GetRunId())
	case t != a.turn:
		return &agentv1.WatchTurnResponse{Ended: t.rec}, nil
	}
	seen := &agentv1.WatchTurnResponse{}
	for _, m := range a.lane.Interjections() {
		if !announced[m.GetMessageId()] {
			seen.Interjections = append(seen.Interjections, m)
		}
	}
	return seen, nil
}

// watches are the streams that wait for news of an agent's turn.
type watches struct {
	mu sync.Mutex
	of map[key]map[chan struct{}]struct{}
}

func (w *watches) add(k key) (news <-chan struct{}, forget func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[key]map[chan struct{}]struct{}{}
	}
	if w.of[k] == nil {
		w.of[k] = map[chan struct{}]struct{}{}
	}
	w.of[k][c] = struct{}{}
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.of[k], c)
		if len(w.of[k]) == 0 {
			delete(w.of, k)
		}
	}
}

// tell signals the streams that an event is news for. It never blocks: a signal
// that waits already stands for this one.
func (w *watches) tell(ev *journal.Event) {
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
	for c := range w.of[ref.Agent{Namespace: ev.Namespace, ID: ev.AgentID}] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
