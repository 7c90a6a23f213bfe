package turns

import (
	"context"
	"slices"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/runners"
	"quartet/services/agent/state"
	"quartet/services/agent/tools"
)

// requestReused reports whether req cannot be a repetition of the request that acquired t: it is of
// another runner, or it does not ask for turns of t's namespace or agent.
func requestReused(req *agentv1.AcquireTurnRequest, t *agentv1.Turn) bool {
	return req.GetRunnerId() != t.GetRunnerId() || t.GetAcquiredFrom() != "" && !req.GetAllNamespaces() ||
		len(req.GetAgentIds()) > 0 && !slices.Contains(req.GetAgentIds(), t.GetAgentId())
}

// requestOf returns the key under which the turn that a request acquires is found again.
func requestOf(actor rpc.Actor, req *agentv1.AcquireTurnRequest) state.TurnRequest {
	return state.TurnRequest{
		Namespace: actor.Namespace, Caller: plane.Recorded(actor).Caller(),
		RequestID: req.GetRequestId(),
	}
}

// acquired is a turn that a request acquired, with its agent and its message.
type acquired struct {
	state.Candidate
	turn *agentv1.Turn
}

// acquiredBy returns the turn that a request acquired in a partition, nil if there is none.
func acquiredBy(ctx context.Context, p *journal.Partition[*state.State], key state.TurnRequest) (*acquired, error) {
	f, _, err := journal.View(ctx, p, func(st *state.State) (*acquired, error) {
		place, known := st.AcquiredTurns[key]
		if !known {
			return nil, nil
		}
		a := st.Lookup(place.Agent)
		t := a.FindTurn(place.TurnID)
		return &acquired{*t.Candidate(place.Agent, a), t.Record}, nil
	})
	return f, err
}

// repeatedAcquire returns the turn that the same request acquired before: the first response
// may have been lost (SPEC X2). The context of an open turn is read again, and its lease is
// extended. Of a turn that has ended it returns the turn, its message and its agent, but no
// context, tools or run token. It returns nil if there was no turn, or if the turn is given
// back because its response did not arrive, and REQUEST_ID_REUSED if the request could not
// have acquired that turn.
func (s *Service) repeatedAcquire(ctx context.Context, actor rpc.Actor, req *agentv1.AcquireTurnRequest) (
	*agentv1.AcquireTurnResponse, error,
) {
	key := requestOf(actor, req)
	for _, p := range s.engine.All() {
		found, err := acquiredBy(ctx, p, key)
		if err != nil {
			return nil, err
		}
		for found != nil {
			if requestReused(req, found.turn) || !runners.SelectionOf(req).Matches(found.Record) {
				return nil, fault.RequestIDReused.Newf("request_id %q acquired a turn of agent %q for runner %q before",
					req.GetRequestId(), found.turn.GetAgentId(), found.turn.GetRunnerId()).
					With("request_id", req.GetRequestId())
			}
			if !s.deps.Deliveries.AnswerRepeated(found.turn.GetRunId()) {
				return nil, nil
			}

			// The first call may have given the turn back after it was read here. From now on it will not, so read
			// once more.
			again, err := acquiredBy(ctx, p, key)
			if err != nil {
				return nil, err
			}
			if again != nil && again.turn.GetTurnId() == found.turn.GetTurnId() {
				return s.answerRepeated(ctx, actor, again)
			}
			found = again
		}
	}
	return nil, nil
}

// answerRepeated returns the response to a request that acquired a turn before.
func (s *Service) answerRepeated(ctx context.Context, actor rpc.Actor, f *acquired) (*agentv1.AcquireTurnResponse,
	error,
) {
	s.deps.Deliveries.ClearUndelivered(f.turn.GetRunId())
	rpc.Replayed(ctx)
	if f.turn.GetState() != agentv1.TurnState_TURN_STATE_OPEN {
		return &agentv1.AcquireTurnResponse{
			Turn: f.turn, Message: f.Message, Agent: f.Record,
			Namespace: f.Agent.Namespace,
		}, nil
	}
	queue, err := s.prepare(ctx, &f.Candidate)
	if err != nil {
		return nil, err
	}
	actor.Namespace = f.Agent.Namespace
	return s.response(rpc.WithActor(ctx, actor), f.Agent.Namespace, f.turn, f.Message, queue.Render(f.Message))
}

// response returns the response for an open turn, whose lease it renews for a full term.
func (s *Service) response(ctx context.Context, namespace string, turn *agentv1.Turn, m *agentv1.Message,
	shown *agentv1.ContextProjection,
) (*agentv1.AcquireTurnResponse, error) {
	until := s.deps.Leases.Arm(plane.Key{Namespace: namespace, ID: turn.GetAgentId()}, turn.GetRunId())
	view, _, err := plane.View(ctx, s.engine, turn.GetAgentId(), func(st *state.State) (*agentv1.AcquireTurnResponse,
		error,
	) {
		a, err := st.Find(namespace, turn.GetAgentId())
		if err != nil {
			return nil, err
		}
		resp := &agentv1.AcquireTurnResponse{Agent: a.Record, Namespace: namespace}
		if t := a.FindTurn(turn.GetTurnId()); t != nil {
			for _, messageID := range t.Record.GetInterjectedMessageIds() {
				if interjection := a.Lane.Get(messageID); interjection != nil { // the turn may have ended
					resp.Interjections = append(resp.Interjections, interjection)
				}
			}
		}
		return resp, nil
	})
	if err != nil {
		return nil, err
	}
	view.Turn = runners.WithExpiry(turn, until)
	view.Message = m
	view.Context = shown
	view.Tools = tools.Profile(view.GetAgent().GetToolFamilies()).Names()
	view.RunToken = s.deps.MintRun(namespace, turn.GetAgentId(), turn.GetRunId())
	return view, nil
}
