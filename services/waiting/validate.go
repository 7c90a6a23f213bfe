package waiting

import (
	"quartet/pkg/fault"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/rpc"
)

// admitWrite is admit for calls that change records, which the agent, operators and services
// on behalf of them may make (SPEC X15).
func admitWrite(actor rpc.Actor, agentID string) error {
	switch actor.Role {
	case rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleAgent, rpc.RoleService:
		return admit(actor, agentID)
	case "":
		return fault.Unauthenticated.New("the call has no actor; send a credential")
	}
	return fault.PermissionDenied.Newf("role %s does not make or end waits, triggers and timers", actor.Role)
}

// admit checks that the caller may read what belongs to the agent (SPEC X4). Outside systems
// and workers may not; deliveries are admitted by their token.
func admit(actor rpc.Actor, agentID string) error {
	if actor.Role == rpc.RoleIntegration || actor.Role == rpc.RoleWorker {
		return fault.PermissionDenied.Newf("role %s does not see waits, triggers and timers", actor.Role)
	}
	if err := fault.Name("agent_id", agentID); err != nil {
		return err
	}
	return rpc.CheckAgent(actor, agentID)
}

func itemID(id string) error {
	if id == "" {
		return nil
	}
	return fault.ID("work_item_id", id, "wi_")
}

func knownDelivery(m waitingv1.DeliveryMode) error {
	if _, ok := waitingv1.DeliveryMode_name[int32(m)]; !ok {
		return fault.Invalid("delivery_mode", m.String(), "must be wake_hint or contentful")
	}
	return nil
}

// orWakeHint returns the delivery mode of a trigger, wake_hint by default. A wait has no
// default, and then uses the mode of its trigger.
func orWakeHint(m waitingv1.DeliveryMode) waitingv1.DeliveryMode {
	if m == waitingv1.DeliveryMode_DELIVERY_MODE_UNSPECIFIED {
		return waitingv1.DeliveryMode_DELIVERY_MODE_WAKE_HINT
	}
	return m
}
