package identity

import (
	"context"
	"math"

	"quartet/pkg/fault"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
)

// GetUsage returns the quotas of a namespace, and how much of them it uses (SPEC I18). The namespace is the
// caller's unless the request names one. With all_namespaces it returns the result of usageOfAll.
func (s *Service) GetUsage(ctx context.Context, req *identityv1.GetUsageRequest) (*identityv1.GetUsageResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if req.GetAllNamespaces() {
		return s.usageOfAll(ctx, actor, req)
	}
	namespace := req.GetNamespace()
	if namespace == "" {
		namespace = actor.Namespace
	}
	if err := fault.First(fault.Name("namespace", namespace), administers(actor, namespace)); err != nil {
		return nil, err
	}
	quotas, err := s.deps.Usage(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return &identityv1.GetUsageResponse{Namespace: namespace, Quotas: quotas}, nil
}

// usageOfAll returns which namespaces hold most. It checks the role, because only a request for all namespaces takes
// more than an admin.
func (s *Service) usageOfAll(ctx context.Context, actor rpc.Actor, req *identityv1.GetUsageRequest) (
	*identityv1.GetUsageResponse, error,
) {
	if !actor.Has(rpc.RoleInstallationAdmin) {
		return nil, fault.PermissionDenied.New("role "+actor.Role+" may not do this; it takes "+
			rpc.RoleInstallationAdmin, "role", actor.Role, "principal", actor.Principal)
	}
	if req.GetNamespace() != "" {
		return nil, fault.Invalid("namespace", req.GetNamespace(), "must be empty together with all_namespaces")
	}
	largest, n, err := s.deps.Largest(ctx)
	if err != nil {
		return nil, err
	}
	return &identityv1.GetUsageResponse{Namespaces: largest, NamespaceCount: int32(min(n, math.MaxInt32))}, nil
}
