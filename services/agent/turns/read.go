package turns

import (
	"context"
	"slices"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/ref"
	"quartet/services/agent/state"
	"quartet/services/agent/transcript"
)

// ListTurns reads an agent's turns, newest first.
func (s *Service) ListTurns(ctx context.Context, req *agentv1.ListTurnsRequest) (*agentv1.ListTurnsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	size, err := page.Size(req.GetPageSize(), 0)
	if err != nil {
		return nil, err
	}
	from, err := page.Position("turns", req.GetPageToken(), 1)
	if err != nil {
		return nil, err
	}
	r, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *state.State) (*agentv1.ListTurnsResponse, error) {
		a, err := st.Find(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		var all []*agentv1.Turn
		if a.OpenTurn != nil {
			all = append(all, a.OpenTurn.Record)
		}
		for i := len(a.EndedTurns) - 1; i >= 0; i-- {
			all = append(all, a.EndedTurns[i].Record)
		}
		if from != nil {
			at := slices.IndexFunc(all, func(t *agentv1.Turn) bool { return t.GetTurnId() == from[0] })
			if at < 0 {
				return &agentv1.ListTurnsResponse{}, nil // that turn left the memory, and so did all before it
			}
			all = all[at+1:]
		}
		resp := &agentv1.ListTurnsResponse{Turns: all}
		if len(all) > size {
			resp.Turns = all[:size]
			resp.NextPageToken = page.Token("turns", all[size-1].GetTurnId())
		}
		return resp, nil
	})
	return r, err
}

// endedTurnAt reads the record of a turn that is in memory no more.
func (s *Service) endedTurnAt(ctx context.Context, k ref.Agent, walSeq uint64) (*agentv1.Turn, error) {
	events, err := journal.ReadBack(ctx, s.engine.For(k.Namespace, k.ID), []uint64{walSeq})
	if err != nil {
		return nil, err
	}
	return state.EndedTurn(events), nil
}

// GetTurn reads a turn with its rounds, however long ago it was.
func (s *Service) GetTurn(ctx context.Context, req *agentv1.GetTurnRequest) (*agentv1.GetTurnResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	k := ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()}
	var rounds [][]uint64
	var end uint64
	resp, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (*agentv1.GetTurnResponse, error) {
		rounds, end = nil, 0 // a look may run again
		a, err := st.Find(k.Namespace, k.ID)
		if err != nil {
			return nil, err
		}
		span, known := a.Transcript.Turn(req.GetTurnId())
		if !known {
			return nil, fault.NotFound.Newf("agent %q has no turn %q", req.GetAgentId(), req.GetTurnId())
		}
		t := a.Find(req.GetTurnId())
		if t != nil && len(t.Rounds) == span.Rounds {
			return &agentv1.GetTurnResponse{Turn: t.Record, Rounds: slices.Clone(t.Rounds)}, nil
		}
		for n := span.First; n < span.First+span.Rounds; n++ {
			rounds = append(rounds, a.Transcript.Round(n))
		}
		if t != nil {
			return &agentv1.GetTurnResponse{Turn: t.Record}, nil
		}
		end = span.EndedAt
		return &agentv1.GetTurnResponse{}, nil
	})
	if err != nil {
		return nil, err
	}
	if end != 0 {
		if resp.Turn, err = s.endedTurnAt(ctx, k, end); err != nil {
			return nil, err
		}
	}
	if rounds != nil {
		resp.Rounds, err = transcript.Read(ctx, s.engine.For(k.Namespace, k.ID), rounds)
	}
	return resp, err
}
