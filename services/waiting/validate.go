package waiting

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/rpc"
)

// write is a request that changes what belongs to an agent.
type write interface {
	GetAgentId() string
	GetRequestId() string
}

// admitWrite checks that the caller may change what belongs to the agent (SPEC X15): it is the
// agent, an operator, an admin or a service. It also checks the request id.
func admitWrite(ctx context.Context, req write) error {
	switch actor := rpc.ActorFrom(ctx); actor.Role {
	case rpc.RoleInstallationAdmin, rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleAgent, rpc.RoleService:
		return fault.First(admit(actor, req.GetAgentId()), fault.RequestID(req.GetRequestId()))
	case "":
		return fault.Unauthenticated.New("the call has no actor; send a credential")
	default:
		return fault.PermissionDenied.Newf("role %s does not make or end waits, triggers and timers", actor.Role)
	}
}

// forAgent returns the rule of a call that creates something for an agent. If refused is not
// nil, the rule returns it: what other planes refused is said by the rule, so that a repeated
// request gets its first response before that (SPEC X2). It also returns an error if the agent
// is deleted. Otherwise decide decides.
func forAgent[R any](agentID string, refused error, decide func(*State, journal.Env) (journal.Decision[R], error)) func(
	*State, journal.Env) (journal.Decision[R], error) {
	return func(st *State, env journal.Env) (journal.Decision[R], error) {
		if refused != nil {
			return journal.Decision[R]{}, refused
		}
		if err := st.alive(env.Actor.Namespace, agentID); err != nil {
			return journal.Decision[R]{}, err
		}
		return decide(st, env)
	}
}

// admit checks that the caller may act for the agent (SPEC X4), and that agentID is a valid name. Which roles may call
// a method, the edges have checked.
func admit(actor rpc.Actor, agentID string) error {
	if err := fault.Name("agent_id", agentID); err != nil {
		return err
	}
	return rpc.CheckAgent(actor, agentID)
}

// validItemID validates the id of a work item, which may be left out.
func validItemID(id string) error {
	if id == "" {
		return nil
	}
	return fault.ID("work_item_id", id, "wi_")
}

// orWakeHint returns the delivery mode of a trigger, wake_hint by default. A wait has no
// default, and then uses the mode of its trigger.
func orWakeHint(m waitingv1.DeliveryMode) waitingv1.DeliveryMode {
	if m == waitingv1.DeliveryMode_DELIVERY_MODE_UNSPECIFIED {
		return waitingv1.DeliveryMode_DELIVERY_MODE_WAKE_HINT
	}
	return m
}
