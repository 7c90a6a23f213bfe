package turns

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// RenewTurn renews the lease of a turn (SPEC A6). It writes no journal line.
func (s *Service) RenewTurn(ctx context.Context, req *agentv1.RenewTurnRequest) (*agentv1.RenewTurnResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRun(actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId()); err != nil {
		return nil, err
	}
	_, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *state.State) (*agentv1.Turn, error) {
		t, err := st.HeldTurn(plane.Recorded(actor), req.GetAgentId(), req.GetTurnId(), req.GetRunId())
		if err != nil {
			return nil, err
		}
		return t.Record, nil
	})
	if err != nil {
		return nil, err
	}
	until := s.deps.Leases.Arm(plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()}, req.GetRunId())
	return &agentv1.RenewTurnResponse{LeaseExpiresAt: timestamppb.New(until)}, nil
}
