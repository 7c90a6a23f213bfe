package turns

import (
	"context"
	"errors"
	"fmt"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// FinishTurn ends a turn as its runner reports (SPEC A6). For a turn that this run has ended
// already it changes nothing and returns the turn.
func (s *Service) FinishTurn(ctx context.Context, req *agentv1.FinishTurnRequest) (*agentv1.FinishTurnResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRun(actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId()); err != nil {
		return nil, err
	}
	if err := fault.TextBytes("message", req.GetMessage(), fault.MaxFreeTextBytes, false); err != nil {
		return nil, err
	}
	how, err := endingOf(req)
	if err != nil {
		return nil, err
	}
	k := plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()}
	ctx, span := s.startSpan(ctx, k, req.GetTurnId(), "finish")
	defer span.End()
	unlock := s.roundLocks.Lock(req.GetTurnId())
	defer unlock()

	// A round that a crash cut off may have completed an item, whose report is still missing.
	if how.State == agentv1.TurnState_TURN_STATE_COMPLETED {
		if _, how.Reported, err = s.deps.Briefs.Recover(ctx, k, req.GetRunId()); err != nil {
			return nil, err
		}
	}

	// End the turn.
	resp, err := plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.FinishTurnResponse]{
		Frees: true, Method: "FinishTurn", AgentID: req.GetAgentId(),
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.FinishTurnResponse], error) {
			return decideFinish(st, env, req, how)
		},
		Answer: answerFinish,
	})
	if err != nil {
		if how.Reported {
			err = plane.Stored(err) // the report was written
		}
		return nil, err
	}
	s.deps.Leases.Release(k, req.GetRunId())
	return resp, nil
}

// endingOf returns how a turn ends by the outcome that its runner reports.
func endingOf(req *agentv1.FinishTurnRequest) (state.Ending, error) {
	e := state.Ending{State: agentv1.TurnState_TURN_STATE_FAILED, Message: req.GetMessage()}
	switch req.GetOutcome() {
	case agentv1.TurnOutcome_TURN_OUTCOME_UNSPECIFIED, agentv1.TurnOutcome_TURN_OUTCOME_COMPLETED:
		e.State, e.Reason = agentv1.TurnState_TURN_STATE_COMPLETED, agentv1.TurnEndReason_TURN_END_REASON_FINISHED
	case agentv1.TurnOutcome_TURN_OUTCOME_RETRYABLE:
		e.Reason, e.Requeue = agentv1.TurnEndReason_TURN_END_REASON_RETRYABLE, true
	case agentv1.TurnOutcome_TURN_OUTCOME_RELEASED:
		e.Reason, e.Requeue, e.Uncounted = agentv1.TurnEndReason_TURN_END_REASON_RELEASED, true, true
	case agentv1.TurnOutcome_TURN_OUTCOME_FATAL:
		e.Reason, e.Quarantine = agentv1.TurnEndReason_TURN_END_REASON_FATAL, true
	case agentv1.TurnOutcome_TURN_OUTCOME_BASELINE_OVER_BUDGET:
		e.Reason, e.Quarantine = agentv1.TurnEndReason_TURN_END_REASON_BASELINE_OVER_BUDGET, true
	default:
		return e, fault.Invalid("outcome", req.GetOutcome().String(), "must be completed, retryable, released, fatal "+
			"or baseline_over_budget")
	}
	return e, nil
}

// decideFinish is the rule of FinishTurn.
func decideFinish(s *state.State, env journal.Env, req *agentv1.FinishTurnRequest, how state.Ending) (
	journal.Decision[*agentv1.FinishTurnResponse], error,
) {
	var d journal.Decision[*agentv1.FinishTurnResponse]
	a, err := s.Find(env.Actor.Namespace, req.GetAgentId())
	if err != nil {
		return d, err
	}
	_, err = s.HeldTurn(env.Actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId())
	if errors.Is(err, fault.TurnEnded) {
		d.Reply = &agentv1.FinishTurnResponse{Turn: a.FindTurn(req.GetTurnId()).Record}
		return d, nil
	}
	if err != nil {
		return d, err
	}
	d.Events = a.EndTurn(env, how, nil)
	return d, nil
}

// answerFinish returns the turn that the events have ended.
func answerFinish(events []*journal.Event) (*agentv1.FinishTurnResponse, error) {
	if t := state.EndedTurn(events); t != nil {
		return &agentv1.FinishTurnResponse{Turn: t}, nil
	}
	return nil, fmt.Errorf("agent: no end of a turn among %d events", len(events))
}
