package waiting

import (
	"context"
	"errors"

	"quartet/pkg/fault"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/rpc"
)

// CheckDelivery says whether a delivery would be accepted now, before its body is read (SPEC G9). It
// changes nothing and counts nothing: DeliverTrigger decides.
func (s *Service) CheckDelivery(ctx context.Context, req *waitingv1.CheckDeliveryRequest) (
	*waitingv1.CheckDeliveryResponse, error,
) {
	to, err := s.find(ctx, req.GetToken())
	if err != nil {
		return nil, err
	}
	status := to.status
	if to.trigger == nil {
		status = waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED
	}
	if err := checkAddress(status, to.trigger, s.deps.Clock.Now()); err != nil {
		return nil, err
	}
	if s.deps.Quota != nil {
		if err := s.deps.Quota.CheckDelivery(to.agent.Namespace, to.triggerID,
			int(min(max(req.GetBodyBytes(), 0), maxBody))); err != nil {
			return nil, err
		}
	}
	return &waitingv1.CheckDeliveryResponse{Namespace: to.agent.Namespace, TriggerId: to.triggerID}, nil
}

// room counts a delivery in the quotas of its namespace and trigger. It refuses one for which these have no room,
// or, if its content becomes a message, the lane of its agent has none.
func (s *Service) room(ctx context.Context, to target, bytes int) error {
	if s.deps.Quota != nil {
		if err := s.deps.Quota.Delivery(to.agent.Namespace, to.triggerID, bytes); err != nil {
			return err
		}
	}
	if !to.contentful || bytes == 0 {
		return nil
	}
	ctx = rpc.WithActor(ctx, rpc.Actor{
		Namespace: to.agent.Namespace, Principal: "trigger/" + to.triggerID,
		Role: rpc.RoleIntegration,
	})
	if err := s.deps.Agents.LaneRoom(ctx, to.agent.ID); errors.Is(err, fault.Overloaded) {
		return err
	}
	return nil // an agent plane that cannot be asked stores the message when it can
}
