package identity

import (
	"context"

	"quartet/pkg/fault"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
)

// GetUsage returns the quotas of a namespace, and how much of them it uses (SPEC I18). The namespace is the
// caller's unless the request names one.
func (s *Service) GetUsage(ctx context.Context, req *identityv1.GetUsageRequest) (*identityv1.GetUsageResponse, error) {
	actor := rpc.ActorFrom(ctx)
	namespace := req.GetNamespace()
	if namespace == "" {
		namespace = actor.Namespace
	}
	if err := fault.First(rpc.RequireRole(ctx, rpc.RoleAdmin), fault.Name("namespace", namespace), administers(actor, namespace)); err != nil {
		return nil, err
	}
	quotas, err := s.deps.Usage(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return &identityv1.GetUsageResponse{Namespace: namespace, Quotas: quotas}, nil
}
