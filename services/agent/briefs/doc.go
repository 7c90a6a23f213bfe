// Package briefs turns the text of a round into the report of the work item that
// the round completed, and reads the short notices that operators get about turns
// and reports.
package briefs

import (
	"context"

	"google.golang.org/grpc"

	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/state"
)

// Work is the part of the work plane that promotion needs.
type Work interface {
	PromoteReport(ctx context.Context, in *workv1.PromoteReportRequest, opts ...grpc.CallOption) (
		*workv1.PromoteReportResponse, error)
	ListWorkItemHistory(ctx context.Context, in *workv1.ListWorkItemHistoryRequest, opts ...grpc.CallOption) (
		*workv1.ListWorkItemHistoryResponse, error)
}

// Deps is what a Service needs.
type Deps struct {
	Work Work
}

// Service promotes reports and lists briefs.
type Service struct {
	engine *state.Engine
	deps   Deps
}

// New returns a Service over the partitions of engine.
func New(engine *state.Engine, deps Deps) *Service { return &Service{engine: engine, deps: deps} }
