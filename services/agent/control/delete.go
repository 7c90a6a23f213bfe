package control

import (
	"context"
	"strconv"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/state"
)

// DeleteAgent permanently deletes an agent (SPEC A8). One frame takes it out of service:
// its turn, its lane, its lifecycle. What other planes hold for it, and its private
// descendants, end after that; the supervisor continues across crashes until the
// lifecycle is deleted.
func (s *Service) DeleteAgent(ctx context.Context, req *agentv1.DeleteAgentRequest) (*agentv1.DeleteAgentResponse,
	error,
) {
	if err := validateOrder(req); err != nil {
		return nil, err
	}
	if req.GetExpectedRevision() < 0 {
		return nil, fault.Invalid("expected_revision", strconv.FormatInt(req.GetExpectedRevision(), 10),
			"must be 0 or a revision")
	}
	a, err := plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.Agent]{
		Frees: true, Method: "DeleteAgent", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.Agent], error) {
			var d journal.Decision[*agentv1.Agent]
			a, err := st.Controllable(env.Actor, req.GetAgentId())
			if err != nil {
				return d, err
			}
			d.Reply = a.Record
			if !a.IsActive() {
				return d, nil // a repeated deletion changes nothing
			}
			if want := req.GetExpectedRevision(); want != 0 && want != a.Record.GetRevision() {
				return d, fault.RevisionConflict.Newf("agent %q is at revision %d, not %d; read it again and repeat",
					req.GetAgentId(), a.Record.GetRevision(), want).
					With("agent_id", req.GetAgentId()).With("current_revision",
					strconv.FormatInt(a.Record.GetRevision(), 10)).With("expected_revision",
					strconv.FormatInt(want, 10))
			}
			d.Events = a.BeginDeletion(env, req.GetReason(), &agentv1.AgentDeleting{
				Outcome:       agentv1.DelegationOutcome_DELEGATION_OUTCOME_CANCELLED,
				ResultSummary: state.ClipReport(req.GetReason()),
			})
			return d, nil
		},
		Answer: agentOf,
	})
	if err != nil {
		return nil, err
	}
	return &agentv1.DeleteAgentResponse{Agent: a}, nil
}
