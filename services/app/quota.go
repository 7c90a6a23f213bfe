package app

import (
	"context"

	"quartet/pkg/rpc"
	"quartet/services/identity"
	"quartet/services/quota"
)

// permitWithin returns a permission check, identity.Permit, that also counts requests against
// the namespace's quota and refuses those beyond it. A request counts once, where it enters
// the installation: calls between services are not counted, and those of REST were counted by
// the gateway.
func permitWithin(gate *quota.Gate) func(ctx context.Context, method string, a rpc.Actor) error {
	return func(ctx context.Context, method string, a rpc.Actor) error {
		if err := identity.Permit(ctx, method, a); err != nil || rpc.Via(ctx) != "" {
			return err
		}
		return gate.Request(a.Namespace)
	}
}
