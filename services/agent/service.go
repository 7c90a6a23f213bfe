package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// Plane is the name of this plane in journals, subjects and cursors.
const Plane = "agent"

// Work is what this plane asks of the work plane by itself; tool calls go by
// the table in tools.go.
type Work interface {
	GetWorkQueue(ctx context.Context, in *workv1.GetWorkQueueRequest, opts ...grpc.CallOption) (*workv1.GetWorkQueueResponse, error)
	GetWorkItem(ctx context.Context, in *workv1.GetWorkItemRequest, opts ...grpc.CallOption) (*workv1.GetWorkItemResponse, error)
	PromoteReport(ctx context.Context, in *workv1.PromoteReportRequest, opts ...grpc.CallOption) (*workv1.PromoteReportResponse, error)
}

// Waiting is what this plane asks of the waiting plane by itself: what the
// agent, apart from its items, waits for.
type Waiting interface {
	ListWaits(ctx context.Context, in *waitingv1.ListWaitsRequest, opts ...grpc.CallOption) (*waitingv1.ListWaitsResponse, error)
}

// Config is what an operator sets.
type Config struct {
	Partitions int
}

// Deps is what this plane needs of its process and of other planes.
type Deps struct {
	plane.Deps
	Work    Work
	Waiting Waiting
	// Conn reaches another plane, for tool calls.
	Conn func(plane string) (grpc.ClientConnInterface, error)
	// MintRun makes the credential of a run.
	MintRun func(namespace, agentID, runID string) string
}

// Service is the agent plane.
type Service struct {
	agentv1.UnimplementedAgentServiceServer

	cfg      Config
	deps     Deps
	engine   *plane.Engine[*State]
	leases   *leases
	waiters  waiters
	rounds   turnLocks
	stopping chan struct{}
	stopOnce sync.Once

	reservedMu   sync.Mutex
	reservations map[key]struct{}
}

// New completes the configuration. Nothing is opened before Start.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Work == nil || deps.Waiting == nil || deps.Conn == nil || deps.MintRun == nil {
		return nil, errors.New("agent: Deps needs Work, Waiting, Conn and MintRun")
	}
	return &Service{
		cfg: cfg, deps: deps, stopping: make(chan struct{}), reservations: map[key]struct{}{},
	}, deps.Complete()
}

// Name is the module's name.
func (s *Service) Name() string { return Plane }

// Register puts the service on a server.
func (s *Service) Register(srv grpc.ServiceRegistrar) { agentv1.RegisterAgentServiceServer(srv, s) }

// Start opens the journal, gives open turns their term, and begins to follow
// the other planes.
func (s *Service) Start(ctx context.Context) error {
	if err := s.deps.Complete(); err != nil {
		return err
	}
	s.leases = newLeases(s.deps.Clock, s.expire)
	engine, err := plane.Open(ctx, plane.Config[*State]{
		Plane: Plane, Partitions: s.cfg.Partitions, New: NewState,
		Events: agentv1.File_quartet_agent_v1_agent_event_proto,
		Follow: follows(), React: react, OnCommit: s.committed, OnLoad: s.loaded,
	}, s.deps.Deps)
	if err != nil {
		return err
	}
	s.engine = engine
	s.leases.start(engine.StallTotal)
	if err := engine.Follow(ctx); err != nil {
		return errors.Join(err, s.Stop(ctx))
	}
	return nil
}

// Stop lets long polls go, then closes the journal. It is idempotent.
func (s *Service) Stop(ctx context.Context) error {
	s.Release()
	if s.engine == nil {
		return nil
	}
	s.leases.stop()
	return s.engine.Close(ctx)
}

// Ready is nil once the journal is open and while it can be written.
func (s *Service) Ready() error {
	if s.engine == nil {
		return errors.New("agent: not started")
	}
	return s.engine.Ready()
}

// Stalled is how long the journal has been unable to write.
func (s *Service) Stalled() time.Duration {
	if s.engine == nil {
		return 0
	}
	return s.engine.Stalled()
}

// Release lets long polls go, so that a stop need not wait for them.
func (s *Service) Release() { s.stopOnce.Do(func() { close(s.stopping) }) }

// committed keeps the terms of turns, and wakes a runner for each agent that
// may have a turn to take. It runs in the journal's loop, so it only signals.
func (s *Service) committed(_ int, events []*journal.Event) {
	for _, ev := range events {
		if p, ok := ev.Payload.(*agentv1.TurnStarted); ok {
			s.leases.arm(key{ev.Namespace, ev.AgentID}, p.GetTurn().GetRunId())
		} else if t := endedTurn([]*journal.Event{ev}); t != nil {
			s.leases.disarm(key{ev.Namespace, ev.AgentID}, t.GetRunId())
		}
		switch ev.Payload.(type) {
		case *agentv1.MessageQueued, *agentv1.MessageRequeued, *agentv1.MessageDropped, *agentv1.AgentSpawned,
			*agentv1.TurnCompleted, *agentv1.TurnFailed, *agentv1.TurnInterrupted, *agentv1.TurnAborted:
			s.waiters.wake(ev.Namespace, ev.AgentID)
		}
	}
}

// turnLocks let one call at a time work on a turn's rounds: a runner that asks
// again while its first call still runs waits for it and gets its answer.
type turnLocks struct {
	mu    sync.Mutex
	locks map[string]*turnLock
}

type turnLock struct {
	mu    sync.Mutex
	users int
}

func (l *turnLocks) lock(turnID string) (unlock func()) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[string]*turnLock{}
	}
	t := l.locks[turnID]
	if t == nil {
		t = &turnLock{}
		l.locks[turnID] = t
	}
	t.users++
	l.mu.Unlock()
	t.mu.Lock()
	return func() {
		t.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(l.locks, turnID)
		}
	}
}
