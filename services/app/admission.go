package app

import (
	"context"

	"google.golang.org/grpc"

	"quartet/pkg/rpc"
	"quartet/services/app/calls"
	"quartet/services/audit"
	"quartet/services/identity"
	"quartet/services/quota"
)

// admission is the rpc.Admission of a process, for its gRPC server and its gateway. The gate counts requests, streams
// and turns.
type admission struct {
	*quota.Gate
	planes   calls.Planes
	recorder *audit.Recorder
}

// Permit implements rpc.Admission.
func (admission) Permit(ctx context.Context, method string, a rpc.Actor) error {
	return identity.Permit(ctx, method, a)
}

// Fence implements rpc.Admission.
func (d admission) Fence(ctx context.Context, method string, a rpc.Actor) error {
	return d.planes.Fence(ctx, method, a)
}

// Within implements rpc.Admission.
func (admission) Within(a rpc.Actor, method string, req any) error {
	return identity.Within(a, method, req)
}

// Unary implements rpc.Admission. It records the call in the audit log, and then counts it against the quota of the
// namespace.
func (d admission) Unary(ctx context.Context, method string, req any, handle grpc.UnaryHandler) (any, error) {
	return d.recorder.Unary(ctx, method, req, func(ctx context.Context, req any) (any, error) {
		return d.Gate.Unary(ctx, method, req, handle)
	})
}
