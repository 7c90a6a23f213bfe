// Package turns leases turns to runners and carries them out: acquire and renew a
// turn, submit its rounds, watch it, finish it, and end it when its runner is lost.
package turns

import (
	"cmp"
	"context"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/clock"
	"quartet/pkg/id"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/tracing"
	"quartet/pkg/watch"
	"quartet/services/agent/briefs"
	"quartet/services/agent/projection"
	"quartet/services/agent/runners"
	"quartet/services/agent/state"
	"quartet/services/agent/toolcalls"
)

// Work is the part of the work plane that reminders read.
type Work interface {
	GetWorkItem(ctx context.Context, in *workv1.GetWorkItemRequest, opts ...grpc.CallOption) (
		*workv1.GetWorkItemResponse, error)
}

// Deps is what a Service needs.
type Deps struct {
	Work  Work
	Clock clock.Clock
	// WaitClock bounds how long AcquireTurn waits.
	WaitClock clock.Clock
	IDs       id.Source
	Logger    *zap.Logger
	Tracer    *tracing.Tracer
	// MintRun makes the credential of a run.
	MintRun func(namespace, agentID, runID string) string
	// Arrive is plane.Deps.Arrive. AcquireTurn calls it too, each time before it waits; nil: it does not.
	Arrive func(ctx context.Context, method, agentID, requestID string)

	Briefs      *briefs.Service
	Calls       *toolcalls.Service
	Projections *projection.Service
	Leases      *runners.Leases
	Waiters     *runners.Waiters
	Shares      *runners.Shares
	Backoff     *runners.Backoff
	// Granted notifies of turns by the request of AcquireTurn that got one. A request may
	// be waiting twice, if its client abandoned the first call; a turn that either of them
	// gets is the response of both (SPEC X2).
	Granted    *watch.Hub[state.TurnRequest]
	Deliveries *runners.Deliveries
	// Changes notifies of agents whose turn changed (see ChangesTurn).
	Changes      *watch.Hub[plane.Key]
	Reservations *runners.Reservations

	// Stopping is closed when the service stops, which ends every long poll and
	// stream.
	Stopping <-chan struct{}
	// PrepareTimeout and CommitTimeout replace the constants of the same names if
	// they are not 0.
	PrepareTimeout, CommitTimeout time.Duration
}

// Service leases turns and carries them out.
type Service struct {
	engine *state.Engine
	deps   Deps
	// roundLocks lets one call at a time work on the rounds of a turn, by turn id: a
	// runner that repeats a call while the first still runs waits for it and gets
	// its response.
	roundLocks plane.KeyLocks[string]
}

// New returns a Service over the partitions of engine.
func New(engine *state.Engine, deps Deps) *Service {
	deps.PrepareTimeout = cmp.Or(deps.PrepareTimeout, prepareTimeout)
	deps.CommitTimeout = cmp.Or(deps.CommitTimeout, commitTimeout)
	return &Service{engine: engine, deps: deps}
}
