package waiting

import (
	"time"

	"quartet/pkg/fault"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// admitWrite is admit for calls that change something: the agent's own, an
// operator's, or another service's for them (SPEC X15).
func admitWrite(actor rpc.Actor, agentID string) error {
	switch actor.Role {
	case rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleAgent, rpc.RoleService:
		return admit(actor, agentID)
	case "":
		return fault.Unauthenticated.New("the call has no actor; send a credential")
	}
	return fault.PermissionDenied.Newf("role %s does not make or end waits, triggers and timers", actor.Role)
}

// admit checks that the caller may speak for the agent (SPEC X4). Outside
// systems and workers have no business with waits; a trigger's token is its own
// credential.
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

func orWakeHint(m waitingv1.DeliveryMode) waitingv1.DeliveryMode {
	if m == waitingv1.DeliveryMode_DELIVERY_MODE_UNSPECIFIED {
		return waitingv1.DeliveryMode_DELIVERY_MODE_WAKE_HINT
	}
	return m
}

// validDuration takes a span from now; none is fine.
func validDuration(field string, d *durationpb.Duration) error {
	if d == nil {
		return nil
	}
	if err := d.CheckValid(); err != nil {
		return fault.Invalid(field, d.String(), "must be a duration")
	}
	if v := d.AsDuration(); v < 0 || v > maxAhead || d.GetSeconds() > int64(maxAhead/time.Second) {
		return fault.LimitExceeded.Newf("%s is %d s; it must be 0 s to 100 years", field, d.GetSeconds()).
			WithField(field, "must be 0 s to 100 years")
	}
	return nil
}

// validTime takes exactly one of a span and a time. The past is due at once.
func validTime(after *durationpb.Duration, at *timestamppb.Timestamp) error {
	switch {
	case (after == nil) == (at == nil):
		return fault.Invalid("after", "", "or at must be given, and only one of them")
	case after != nil:
		return validDuration("after", after)
	case at.CheckValid() != nil:
		return fault.Invalid("at", at.String(), "must be a time between the years 1 and 9999")
	}
	return nil
}
