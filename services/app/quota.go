package app

import (
	"context"

	"quartet/pkg/rpc"
	"quartet/services/identity"
	"quartet/services/quota"
)

// permitWithin is what a role may do, and how often its namespace may ask. A
// request counts once, where it comes in: services' own calls do not, and those
// of REST were counted by the gateway.
func permitWithin(gate *quota.Gate) func(ctx context.Context, method string, a rpc.Actor) error {
	return func(ctx context.Context, method string, a rpc.Actor) error {
		if err := identity.Permit(ctx, method, a); err != nil || rpc.Via(ctx) != "" {
			return err
		}
		return gate.Request(a.Namespace)
	}
}
