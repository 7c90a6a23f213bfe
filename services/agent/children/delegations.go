package children

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// GetDelegation reads one delegation of a parent (SPEC A3).
func (s *Service) GetDelegation(ctx context.Context, req *agentv1.GetDelegationRequest) (*agentv1.GetDelegationResponse,
	error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(access.CheckRead(actor, req.GetAgentId()), fault.ID("delegation_id", req.GetDelegationId(),
		"dlg_")); err != nil {
		return nil, err
	}
	d, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *state.State) (*agentv1.Delegation, error) {
		a, err := st.Find(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		if d := a.Delegation(req.GetDelegationId()); d != nil {
			return d.Record, nil
		}
		return nil, fault.NotFound.Newf("agent %q has no delegation %q in memory; old ones are in the event stream",
			req.GetAgentId(), req.GetDelegationId()).
			With("delegation_id", req.GetDelegationId())
	})
	if err != nil {
		return nil, err
	}
	return &agentv1.GetDelegationResponse{Delegation: d}, nil
}

// ListDelegations reads a parent's delegations, newest first: all open ones and the
// newest completed ones (SPEC A3, X9).
func (s *Service) ListDelegations(ctx context.Context, req *agentv1.ListDelegationsRequest) (
	*agentv1.ListDelegationsResponse, error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	if req.GetWorkItemId() != "" {
		if err := fault.ID("work_item_id", req.GetWorkItemId(), "wi_"); err != nil {
			return nil, err
		}
	}
	list, err := page.Read("delegations", req)
	if err != nil {
		return nil, err
	}
	resp, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *state.State) (*agentv1.ListDelegationsResponse,
		error,
	) {
		a, err := st.Find(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		return a.DelegationsBefore(list.After, list.Size, req), nil
	})
	return resp, err
}
