// Package projection reads an agent's work from the other planes and renders it as
// the context of a turn: the current work item and its candidates, waits, tasks,
// boards, what the agent did for the item before, and calls whose outcome no runner
// received.
package projection

import (
	"context"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/clock"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/state"
	"quartet/services/agent/toolcalls"
)

// Work is the part of the work plane that a projection reads.
type Work interface {
	GetWorkQueue(ctx context.Context, in *workv1.GetWorkQueueRequest, opts ...grpc.CallOption) (
		*workv1.GetWorkQueueResponse, error)
	GetWorkItem(ctx context.Context, in *workv1.GetWorkItemRequest, opts ...grpc.CallOption) (
		*workv1.GetWorkItemResponse, error)
}

// Waiting is the part of the waiting plane that a projection reads.
type Waiting interface {
	ListWaits(ctx context.Context, in *waitingv1.ListWaitsRequest, opts ...grpc.CallOption) (
		*waitingv1.ListWaitsResponse, error)
	GetTimer(ctx context.Context, in *waitingv1.GetTimerRequest, opts ...grpc.CallOption) (*waitingv1.GetTimerResponse,
		error)
}

// Tasks is the part of the task plane that a projection reads.
type Tasks interface {
	ListTasks(ctx context.Context, in *taskv1.ListTasksRequest, opts ...grpc.CallOption) (*taskv1.ListTasksResponse,
		error)
}

// Boards is the part of the board plane that a projection reads.
type Boards interface {
	GetSummary(ctx context.Context, in *boardv1.GetSummaryRequest, opts ...grpc.CallOption) (
		*boardv1.GetSummaryResponse, error)
}

// Deps is what a Service needs.
type Deps struct {
	Work    Work
	Waiting Waiting
	Tasks   Tasks  // nil: a projection shows no tasks
	Boards  Boards // nil: a projection shows no boards
	// Conn reaches the plane of a call whose outcome no runner received.
	Conn   func(plane string) (grpc.ClientConnInterface, error)
	Logger *zap.Logger
	Calls  *toolcalls.Service
	Clock  clock.Clock
	// History says for how long the installation keeps events that nothing needs any more.
	History plane.History
}

// Service makes projections.
type Service struct {
	engine  *state.Engine
	deps    Deps
	calls   *toolcalls.Service
	digests digestCache
	removed removedCache
}

// New returns a Service that reads agents from the partitions of engine, and their work with deps.
func New(engine *state.Engine, deps Deps) *Service {
	return &Service{engine: engine, deps: deps, calls: deps.Calls}
}
