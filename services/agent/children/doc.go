// Package children creates agents and supervises the private ones: it creates the child of
// every delegation, puts the child's questions to its parent, decides when the child has
// completed its work, removes its worktree unless something was changed in it, reports its
// result to the parent, and finishes the deletion of agents.
package children

import (
	"context"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/clock"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/projection"
	"quartet/services/agent/state"
)

// Work is the part of the work plane that supervision reads.
type Work interface {
	GetWorkQueue(ctx context.Context, in *workv1.GetWorkQueueRequest, opts ...grpc.CallOption) (
		*workv1.GetWorkQueueResponse, error)
}

// Deps is what a Service needs.
type Deps struct {
	Work    Work
	Waiting projection.Waiting
	// Conn reaches the task, waiting and work planes.
	Conn        func(plane string) (grpc.ClientConnInterface, error)
	Clock       clock.Clock
	Logger      *zap.Logger
	Projections *projection.Service
	Supervisor  *Supervisor
	// MaxChildren is how many children an agent supervises at a time.
	MaxChildren int
}

// Service creates and supervises agents.
type Service struct {
	engine      *state.Engine
	deps        Deps
	projections *projection.Service
	supervisor  *Supervisor
}

// New returns a Service over the partitions of engine.
func New(engine *state.Engine, deps Deps) *Service {
	return &Service{engine: engine, deps: deps, projections: deps.Projections, supervisor: deps.Supervisor}
}
