package waiting

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/keyfile"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// Plane is the name of this plane in journals, subjects and cursors.
const Plane = "waiting"

// Work is the part of the work plane that this plane calls: to find the item of a wait and
// to attach the wait to it.
type Work interface {
	GetWorkQueue(ctx context.Context, in *workv1.GetWorkQueueRequest, opts ...grpc.CallOption) (
		*workv1.GetWorkQueueResponse, error)
	GetWorkItem(ctx context.Context, in *workv1.GetWorkItemRequest, opts ...grpc.CallOption) (
		*workv1.GetWorkItemResponse, error)
	AttachWait(ctx context.Context, in *workv1.AttachWaitRequest, opts ...grpc.CallOption) (*workv1.AttachWaitResponse,
		error)
}

// Tasks is the part of the task plane that this plane calls: to find out whether a task of
// the agent exists and has ended.
type Tasks interface {
	GetTask(ctx context.Context, in *taskv1.GetTaskRequest, opts ...grpc.CallOption) (*taskv1.GetTaskResponse, error)
}

// Agents is the part of the agent plane that this plane calls.
type Agents interface {
	// AgentExists returns NOT_FOUND for an agent that was never created in the caller's
	// namespace, and AGENT_DELETED for one whose deletion has begun.
	AgentExists(ctx context.Context, agentID string) error
	// Supervision returns the supervisor of a private child, "" for another agent, and
	// the tasks of the agent whose children ask something.
	Supervision(ctx context.Context, agentID string) (supervisor string, askedBy []string, err error)
	// LaneRoom returns OVERLOADED if the lane of an agent takes no further message now.
	LaneRoom(ctx context.Context, agentID string) error
}

// Quota bounds deliveries by namespace and by trigger.
type Quota interface {
	// Delivery counts a delivery of so many bytes, or refuses it.
	Delivery(namespace, triggerID string, bytes int) error
	// CheckDelivery refuses what Delivery would refuse now, and counts nothing.
	CheckDelivery(namespace, triggerID string, bytes int) error
}

// Config holds the settings of the plane.
type Config struct {
	Share journal.Share // the partitions that this process may hold; zero: all
	// PublicURL is the gateway's address as outside systems see it.
	PublicURL string
	// DefaultRecheck is after how long the owner of a wait is reminded of it if WaitFor
	// does not say; 0: never (SPEC P8). NamespaceRechecks holds the namespaces with another
	// default.
	DefaultRecheck    time.Duration
	NamespaceRechecks map[string]time.Duration
}

// Deps are what the plane needs of its process and of other planes.
type Deps struct {
	plane.Deps
	Work   Work
	Tasks  Tasks
	Agents Agents
	// Keys are the installation's keys, from which the secrets of triggers follow.
	Keys *keyfile.Source
	// Quota bounds deliveries; nil: nothing does.
	Quota Quota
}

// Service is the waiting plane.
type Service struct {
	waitingv1.UnsafeWaitingServiceServer

	cfg     Config
	deps    Deps
	engine  *plane.Engine[*State]
	due     *clock.Due
	batcher batcher
	held    heldTimers

	metrics *metrics // nil: nothing is counted
}

// New validates the configuration. It opens nothing; see Start.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Work == nil || deps.Tasks == nil || deps.Agents == nil || deps.Keys == nil {
		return nil, errors.New("waiting: Deps needs Work, Tasks, Agents and Keys")
	}
	rechecks := maps.Clone(cfg.NamespaceRechecks)
	if rechecks == nil {
		rechecks = map[string]time.Duration{}
	}
	rechecks["(every other namespace)"] = cfg.DefaultRecheck
	for namespace, d := range rechecks {
		if d < 0 || d > fault.Horizon {
			return nil, fmt.Errorf("waiting: the default recheck of %s is %s; it must be 0 to 100 years", namespace, d)
		}
	}
	return &Service{cfg: cfg, deps: deps, metrics: newMetrics(deps.Metrics)}, deps.Complete()
}

// Name implements life.Service.
func (s *Service) Name() string { return Plane }

// Register registers the plane's gRPC service.
func (s *Service) Register(srv grpc.ServiceRegistrar) {
	waitingv1.RegisterWaitingServiceServer(srv, s)
}

// Start opens the journal, fires what is overdue, and begins to follow the other planes.
func (s *Service) Start(ctx context.Context) error {
	if err := s.deps.Complete(); err != nil {
		return err
	}
	s.due = clock.NewDue(s.deps.Clock, s.fire)
	engine, err := plane.Open(ctx, plane.Config[*State]{
		Plane: Plane, Share: s.cfg.Share, New: NewState,
		Events: waitingv1.File_quartet_waiting_v1_waiting_event_proto,
		Follow: follows(), React: react, Dependent: dependent, OnCommit: s.index, OnLoad: s.reindex,
	}, s.deps.Deps)
	if err != nil {
		return err
	}
	s.engine = engine
	s.due.Start()
	if err := engine.Follow(ctx); err != nil {
		return errors.Join(err, s.Stop(ctx))
	}
	return nil
}

// Stop stops firing and then closes the journal. It is idempotent.
func (s *Service) Stop(ctx context.Context) error {
	if s.engine == nil {
		return nil
	}
	s.due.Stop()
	err := s.engine.Close(ctx)
	s.batcher.workers.Wait() // the engine is closed and refuses what they still write
	s.metrics.forget(s.engine.All())
	return err
}

// Ready returns nil while the journal is open and can be written.
func (s *Service) Ready() error { return s.engine.Ready() }

// Stalled returns for how long the journal has been unable to write, 0 while it can.
func (s *Service) Stalled() time.Duration { return s.engine.Stalled() }
