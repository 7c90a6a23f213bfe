// Package messages accepts input for agents and reads their messages.
package messages

import (
	"context"

	"google.golang.org/grpc"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/state"
)

// Work is the part of the work plane that checks the item a message names.
type Work interface {
	GetWorkItem(ctx context.Context, in *workv1.GetWorkItemRequest, opts ...grpc.CallOption) (
		*workv1.GetWorkItemResponse, error)
}

// Waiting is the part of the waiting plane that checks the wait a message answers.
type Waiting interface {
	ListWaits(ctx context.Context, in *waitingv1.ListWaitsRequest, opts ...grpc.CallOption) (
		*waitingv1.ListWaitsResponse, error)
}

// Deps is what a Service needs.
type Deps struct {
	Work    Work
	Waiting Waiting
}

// Service accepts and reads messages.
type Service struct {
	engine *state.Engine
	deps   Deps
}

// New returns a Service over the partitions of engine.
func New(engine *state.Engine, deps Deps) *Service { return &Service{engine: engine, deps: deps} }
