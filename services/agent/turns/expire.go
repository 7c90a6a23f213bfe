package turns

import (
	"context"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// endTurn ends the run of a turn, with the plane itself as the actor. It does nothing if the run has ended.
func (s *Service) endTurn(ctx context.Context, k plane.Key, turn *agentv1.Turn, how state.Ending) error {
	_, err := plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.Turn]{
		Frees: true, Method: "EndTurn", AgentID: k.ID, Actor: plane.System(k.Namespace),
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.Turn], error) {
			var d journal.Decision[*agentv1.Turn]
			a := st.Lookup(k)
			if a == nil || a.OpenTurn == nil || a.OpenTurn.Record.GetRunId() != turn.GetRunId() {
				return d, nil // it has ended already
			}
			d.Events = a.EndTurn(env, how, nil)
			return d, nil
		},
		Answer: func(events []*journal.Event) (*agentv1.Turn, error) { return state.EndedTurn(events), nil },
	})
	return err
}

// RetryTerm is the lease of a turn that must end soon: one whose end failed, or whose
// runner never received it.
const RetryTerm = time.Second

// Expire ends a turn whose lease has expired. Before that, an item that the turn's last round completed
// gets its report if it has none (see briefs.Service.Recover). The message is queued again; the attempt is
// not counted if no runner received the turn. If Expire fails, the lease expires again after RetryTerm.
func (s *Service) Expire(ctx context.Context, k plane.Key, runID string) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ctx = access.AsPlane(ctx, k.Namespace)

	// Write the report that is missing, and end the turn.
	turn, _, err := s.deps.Briefs.Recover(ctx, k, runID)
	if err == nil && turn != nil {
		how := state.Ending{
			State:  agentv1.TurnState_TURN_STATE_INTERRUPTED,
			Reason: agentv1.TurnEndReason_TURN_END_REASON_LEASE_LOST, Requeue: true,
		}
		if s.deps.Deliveries.IsUndelivered(runID) {
			how.Reason, how.Uncounted = agentv1.TurnEndReason_TURN_END_REASON_UNDELIVERED, true
		}
		err = s.endTurn(ctx, k, turn, how)
	}
	if err != nil {
		s.deps.Logger.Warn("a lost turn could not be ended; trying again", zap.String("agent_id", k.ID),
			zap.String("run_id", runID), zap.Error(err))
		s.deps.Leases.ArmFor(k, runID, RetryTerm)
		return
	}
	s.deps.Deliveries.ClearUndelivered(runID)
}

// giveUp gives a turn back whose response could not be delivered. If that fails, its
// lease ends it.
func (s *Service) giveUp(ctx context.Context, namespace string, turn *agentv1.Turn) {
	k := plane.Key{Namespace: namespace, ID: turn.GetAgentId()}
	ctx, cancel := context.WithTimeout(access.AsPlane(ctx, namespace), s.deps.CommitTimeout)
	defer cancel()
	err := s.endTurn(ctx, k, turn, state.Ending{
		State:  agentv1.TurnState_TURN_STATE_INTERRUPTED,
		Reason: agentv1.TurnEndReason_TURN_END_REASON_UNDELIVERED, Requeue: true, Uncounted: true,
	})
	if err != nil {
		s.deps.Deliveries.MarkUndelivered(turn.GetRunId())
		s.deps.Logger.Warn("a turn could not be given back; its lease ends it", zap.String("agent_id", k.ID),
			zap.Error(err))
	}
}
