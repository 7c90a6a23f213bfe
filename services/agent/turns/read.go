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
	"quartet/services/agent/state"
	"quartet/services/agent/transcript"
)

// ListTurns returns the newest turns of an agent, newest first: the open one and ended ones, together at most
// state.KeptTurns. The page after a turn that is no longer one of these is empty. GetTurn reads older turns.
func (s *Service) ListTurns(ctx context.Context, req *agentv1.ListTurnsRequest) (*agentv1.ListTurnsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	list, err := page.Read("turns", req)
	if err != nil {
		return nil, err
	}
	r, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *state.State) (*agentv1.ListTurnsResponse, error) {
		a, err := st.Find(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		// Collect the turns that are in memory.
		var turns []*agentv1.Turn
		if a.OpenTurn != nil {
			turns = append(turns, a.OpenTurn.Record)
		}
		for t := range a.EndedTurns.Backward() {
			turns = append(turns, t.Record)
			if len(turns) == state.KeptTurns {
				break
			}
		}

		// Return the page of them that the request asks for.
		if list.After != "" {
			i := slices.IndexFunc(turns, func(t *agentv1.Turn) bool { return t.GetTurnId() == list.After })
			if i < 0 {
				// That turn is no longer in memory, and neither are those before it.
				return &agentv1.ListTurnsResponse{}, nil
			}
			turns = turns[i+1:]
		}
		resp := &agentv1.ListTurnsResponse{Turns: turns}
		if len(turns) > list.Size {
			resp.Turns = turns[:list.Size]
			resp.NextPageToken = list.Next(turns[list.Size-1].GetTurnId())
		}
		return resp, nil
	})
	return r, err
}

// endedTurnAt reads the record of an ended turn from the journal, where walSeq is the event that ended it. It returns
// nil if that was removed.
func (s *Service) endedTurnAt(ctx context.Context, k plane.Key, walSeq uint64) (*agentv1.Turn, error) {
	events, err := journal.ReadBack(ctx, s.engine.For(k.Namespace, k.ID), []uint64{walSeq})
	if err != nil {
		return nil, err
	}
	return state.EndedTurn(events), nil
}

// turnRemoved returns HISTORY_REMOVED for a turn that is older than history is kept.
func turnRemoved(k plane.Key, turnID string) error {
	return fault.HistoryRemoved.Newf("turn %q of agent %q, or a round of it, was removed: it is older than history "+
		"is kept (history-days); ListRounds reads the rounds that are left", turnID, k.ID).
		With("agent_id", k.ID).With("turn_id", turnID)
}

// GetTurn reads a turn with its rounds, however long ago it ended, unless it was removed.
func (s *Service) GetTurn(ctx context.Context, req *agentv1.GetTurnRequest) (*agentv1.GetTurnResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	k := plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()}
	type found struct {
		turn      *agentv1.Turn    // nil if it is read back
		rounds    []*agentv1.Round // nil if they are read back
		positions [][]uint64       // of the rounds that are read back
		end       uint64           // position of the event that ended the turn
	}

	// Find what is in memory, and where the rest is in the journal.
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (found, error) {
		a, err := st.Find(k.Namespace, k.ID)
		if err != nil {
			return found{}, err
		}
		span, known := a.Transcript.Turn(req.GetTurnId())
		if !known {
			return found{}, fault.NotFound.Newf("agent %q has no turn %q", req.GetAgentId(), req.GetTurnId())
		}
		f := found{end: span.EndedAt}
		t := a.FindTurn(req.GetTurnId())
		if t != nil {
			f.turn = t.Record
		}
		if t != nil && len(t.Rounds) == span.Rounds {
			f.rounds = slices.Clone(t.Rounds)
			return f, nil
		}
		for n := span.First; n < span.First+span.Rounds; n++ {
			f.positions = append(f.positions, a.Transcript.Round(n))
		}
		return f, nil
	})
	if err != nil {
		return nil, err
	}

	// Read the rest back.
	resp := &agentv1.GetTurnResponse{Turn: f.turn, Rounds: f.rounds}
	if resp.Turn == nil {
		if resp.Turn, err = s.endedTurnAt(ctx, k, f.end); err != nil {
			return nil, err
		}
	}
	if f.positions != nil {
		if resp.Rounds, err = transcript.Read(ctx, s.engine.For(k.Namespace, k.ID), f.positions); err != nil {
			return nil, err
		}
	}
	if resp.GetTurn() == nil || slices.Contains(resp.GetRounds(), nil) {
		return nil, turnRemoved(k, req.GetTurnId())
	}
	return resp, nil
}
