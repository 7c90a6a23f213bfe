package agent

import (
	"context"
	"fmt"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// order is what somebody tells an agent to do: not a message but a control
// action, so it takes effect whatever stands in the lane (SPEC A7, A8).
type order struct {
	agentID, requestID, reason string
}

// admitOrder checks what needs no state.
func admitOrder(ctx context.Context, o order) error {
	return fault.First(
		rpc.RequireRole(ctx, rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleAgent, rpc.RoleService),
		fault.Name("agent_id", o.agentID),
		fault.RequestID(o.requestID),
		fault.Text("reason", o.reason, maxReasonChars, false),
	)
}

// maxReasonChars is as much as people say about an order.
const maxReasonChars = 2000

// commanded finds an agent that the caller may give orders to. A private child
// takes them from its supervisor and from an administrator, a public agent from
// operators; nobody from itself (SPEC A2, X15).
func (s *State) commanded(actor journal.Actor, agentID string) (*agentState, error) {
	a, err := s.agent(actor.Namespace, agentID)
	if err != nil {
		return nil, err
	}
	private := a.rec.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE
	switch actor.Role {
	case rpc.RoleAdmin, rpc.RoleService:
		return a, nil
	case rpc.RoleOperator:
		if !private {
			return a, nil
		}
	case rpc.RoleAgent:
		if private && a.rec.GetSupervisorAgentId() == actor.AgentID {
			return a, nil
		}
	}
	if private {
		return nil, fault.PermissionDenied.Newf("agent %q is private: its supervisor %q controls it, by its task, or an administrator", agentID, a.rec.GetSupervisorAgentId()).
			With("agent_id", agentID)
	}
	return nil, fault.PermissionDenied.Newf("agents do not control agent %q; an operator does", agentID).With("agent_id", agentID)
}

// alive is commanded for orders that a deleted agent cannot follow.
func (s *State) alive(actor journal.Actor, agentID string) (*agentState, error) {
	a, err := s.commanded(actor, agentID)
	if err != nil {
		return nil, err
	}
	return a, a.gone()
}

// lives says whether an agent is neither deleted nor about to be.
func (a *agentState) lives() bool {
	return a.rec.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_ACTIVE
}

// gone refuses what cannot be done for an agent that is deleted, or about to be.
func (a *agentState) gone() error {
	if a.lives() {
		return nil
	}
	return fault.AgentDeleted.Newf("agent %q is %s; its id is never used again", a.rec.GetAgentId(), lower(a.rec.GetLifecycle().String(), "LIFECYCLE_")).
		With("agent_id", a.rec.GetAgentId())
}

// ordered is the agent after an order, written once more.
func (a *agentState) ordered(env journal.Env, c agentv1.Control, reason string) *agentv1.Agent {
	r := proto.CloneOf(a.rec)
	r.Control, r.ControlBy, r.ControlAt, r.ControlReason = c, env.Actor.Principal, timestamppb.New(env.Now), reason
	r.Revision++
	r.UpdatedAt = r.GetControlAt()
	return r
}

// withoutTurn is the agent after its open turn has ended in the same frame.
func (a *agentState) withoutTurn(r *agentv1.Agent) *agentv1.Agent {
	if a.turn != nil {
		r.CurrentRunId, r.CurrentTurnId, r.LastTurnId = "", "", a.turn.rec.GetTurnId()
	}
	return r
}

// applyOrder folds an order in. What turns say of the agent is theirs.
func (a *agentState) applyOrder(n *agentv1.Agent) {
	a.edit(func(r *agentv1.Agent) {
		r.Lifecycle = n.GetLifecycle()
		r.Control, r.ControlBy, r.ControlAt, r.ControlReason = n.GetControl(), n.GetControlBy(), n.GetControlAt(), n.GetControlReason()
		r.Revision, r.UpdatedAt = n.GetRevision(), n.GetUpdatedAt()
	})
}

func agentEvent(a *agentv1.Agent, payload proto.Message) *journal.Event {
	return &journal.Event{AgentID: a.GetAgentId(), Payload: payload}
}

// agentOf is the agent that the events of an order leave behind.
func agentOf(events []*journal.Event) (*agentv1.Agent, error) {
	for i := len(events) - 1; i >= 0; i-- {
		if p, ok := events[i].Payload.(interface{ GetAgent() *agentv1.Agent }); ok {
			return p.GetAgent(), nil
		}
	}
	return nil, fmt.Errorf("agent: no agent among %d events", len(events))
}

// obey runs an order. decide gives no events where the agent stands so already;
// then the answer is the agent as it is, and nothing is written.
func (s *Service) obey(ctx context.Context, method string, o order, args proto.Message, decide func(a *agentState, env journal.Env) ([]*journal.Event, error)) (*agentv1.Agent, error) {
	if err := admitOrder(ctx, o); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *agentv1.Agent]{
		Method: method, AgentID: o.agentID, RequestID: o.requestID, Args: args,
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.Agent], error) {
			var d journal.Decision[*agentv1.Agent]
			a, err := st.alive(env.Actor, o.agentID)
			if err != nil {
				return d, err
			}
			d.Reply = a.rec
			d.Events, err = decide(a, env)
			return d, err
		},
		Answer: agentOf,
	})
}
