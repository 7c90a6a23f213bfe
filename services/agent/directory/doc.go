// Package directory reads agents as callers see them: their records, and the
// posture that is derived from what the other planes report.
package directory

import (
	"context"

	"google.golang.org/grpc"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/state"
)

// Work is the part of the work plane from which a posture is derived.
type Work interface {
	GetWorkQueue(ctx context.Context, in *workv1.GetWorkQueueRequest, opts ...grpc.CallOption) (
		*workv1.GetWorkQueueResponse, error)
}

// Waiting is the part of the waiting plane from which a posture is derived.
type Waiting interface {
	ListWaits(ctx context.Context, in *waitingv1.ListWaitsRequest, opts ...grpc.CallOption) (
		*waitingv1.ListWaitsResponse, error)
}

// Deps is what a Service needs.
type Deps struct {
	Work    Work
	Waiting Waiting
}

// Service reads agents.
type Service struct {
	engine *state.Engine
	deps   Deps
}

// New returns a Service over the partitions of engine.
func New(engine *state.Engine, deps Deps) *Service { return &Service{engine: engine, deps: deps} }
