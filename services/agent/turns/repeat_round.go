package turns

import (
	"context"
	"fmt"
	"slices"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/state"
	"quartet/services/agent/transcript"
)

// replayedRound returns a round of a turn whose rounds are no longer in memory, with its
// first response; nil if there is no such round. A runner that was disconnected may
// return after others have worked.
func (s *Service) replayedRound(ctx context.Context, actor journal.Actor, req *agentv1.SubmitRoundRequest) (
	*agentv1.Round, *agentv1.SubmitRoundResponse, error,
) {
	type found struct {
		at   []uint64 // positions of the round's events in the journal; nil: there is no such round
		end  uint64   // position of the event that ended the turn
		last bool     // the round is the last of its turn
	}

	// Find the round. storeRound answers for one that is in memory, and for one of an open turn.
	k := plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (found, error) {
		a := st.Lookup(k)
		if a == nil {
			return found{}, nil
		}
		span, known := a.Transcript.Turn(req.GetTurnId())
		t := a.FindTurn(req.GetTurnId())
		inMemory := t != nil && len(t.Rounds) == span.Rounds
		if !known || inMemory || span.EndedAt == 0 || int(req.GetRoundIndex()) >= span.Rounds {
			return found{}, nil
		}
		return found{
			a.Transcript.Round(span.First + int(req.GetRoundIndex())), span.EndedAt,
			int(req.GetRoundIndex()) == span.Rounds-1,
		}, nil
	})
	if err != nil || f.at == nil {
		return nil, nil, err
	}

	// Read it and the end of its turn.
	events, err := journal.ReadBack(ctx, s.engine.For(k.Namespace, k.ID), append(f.at, f.end))
	if err != nil {
		return nil, nil, err
	}
	if slices.ContainsFunc(events, (*journal.Event).Removed) {
		return nil, nil, turnRemoved(k, req.GetTurnId())
	}
	turn := state.EndedTurn(events[len(events)-1:])
	round, err := transcript.Fold(events[:len(events)-1])
	if err != nil || turn.GetRunId() != req.GetRunId() || !round.GetSettled() {
		return nil, nil, err // storeRound reports what is wrong
	}

	// Return it to its runner, if it is the one that the request submits.
	if err := state.CheckHolder(actor, turn); err != nil {
		return nil, nil, err
	}
	if !sameRound(round, roundOf(req)) {
		return nil, nil, roundReused(req)
	}
	settled, _ := journal.Find[*agentv1.RoundSettled](events)
	rpc.Replayed(ctx)
	return round, repeatedResponse(round, settled, turn, f.last), nil
}

// repeatedResponse returns the response to a round that was settled before. It includes the interjections again: the
// first response may not have arrived (SPEC A9). last says that the round is the turn's last one: only then does the
// response say that the turn has ended.
func repeatedResponse(round *agentv1.Round, settled *agentv1.RoundSettled, turn *agentv1.Turn,
	last bool,
) *agentv1.SubmitRoundResponse {
	resp := &agentv1.SubmitRoundResponse{
		ToolResults: round.GetToolResults(), Interjections: settled.GetInterjections(),
		Notices: settled.GetNotices(), PromotedWorkItemId: settled.GetPromotedWorkItemId(),
	}
	if last && turn.GetState() != agentv1.TurnState_TURN_STATE_OPEN {
		resp.TurnEnded, resp.EndReason = true, turn.GetEndReason()
	}
	return resp
}

// roundOf returns the round of a request.
func roundOf(req *agentv1.SubmitRoundRequest) *agentv1.Round {
	return &agentv1.Round{
		TurnId: req.GetTurnId(), Index: req.GetRoundIndex(), Text: req.GetText(), ToolCalls: req.GetToolCalls(),
		LocalToolCalls: req.GetLocalToolCalls(), LocalToolResults: req.GetLocalToolResults(), Usage: req.GetUsage(),
		ConversationSummary: req.GetConversationSummary(),
	}
}

// roundReused returns the error of a request that submits another round than was submitted before.
func roundReused(req *agentv1.SubmitRoundRequest) error {
	return fault.RequestIDReused.Newf("round %d of turn %q was submitted before with another text, other calls, "+
		"results, usage or summary", req.GetRoundIndex(), req.GetTurnId()).
		With("turn_id", req.GetTurnId()).With("round_index", fmt.Sprint(req.GetRoundIndex()))
}

// sameRound reports whether a round that is stored is the one that a request submits: they differ at most in what
// the plane adds. No usage and a usage of nothing are one.
func sameRound(stored, submitted *agentv1.Round) bool {
	return plane.EqualExcept(stored, submitted, "tool_results", "work_item_id", "created_at", "settled", "usage") &&
		plane.EqualExcept(stored.GetUsage(), submitted.GetUsage())
}
