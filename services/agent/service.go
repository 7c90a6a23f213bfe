package agent

import (
	"context"
	"errors"
	"fmt"
	"quartet/services/agent/ref"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/journal"
	"quartet/pkg/keylock"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
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
	ListWorkItemHistory(ctx context.Context, in *workv1.ListWorkItemHistoryRequest, opts ...grpc.CallOption) (*workv1.ListWorkItemHistoryResponse, error)
}

// Waiting is what this plane asks of the waiting plane by itself: what the
// agent, apart from its items, waits for.
type Waiting interface {
	ListWaits(ctx context.Context, in *waitingv1.ListWaitsRequest, opts ...grpc.CallOption) (*waitingv1.ListWaitsResponse, error)
}

// Tasks is what this plane asks of the task plane by itself: what still runs,
// for a turn's context.
type Tasks interface {
	ListTasks(ctx context.Context, in *taskv1.ListTasksRequest, opts ...grpc.CallOption) (*taskv1.ListTasksResponse, error)
}

// Boards is what this plane asks of the board plane by itself: how an
// orchestrator's boards stand, for a turn's context.
type Boards interface {
	GetSummary(ctx context.Context, in *boardv1.GetSummaryRequest, opts ...grpc.CallOption) (*boardv1.GetSummaryResponse, error)
}

// Config is what an operator sets.
type Config struct {
	Share journal.Share // the partitions that it holds; zero: all of them
	// Weights are the namespaces' shares of the turns that shared runners take
	// (SPEC D7), 1 to MaxWeight; 1 where none is given.
	Weights map[string]int
	// MaxChildren is how many children an agent supervises at a time (SPEC A2);
	// 0: DefaultMaxChildren.
	MaxChildren int
}

// Deps is what this plane needs of its process and of other planes.
type Deps struct {
	plane.Deps
	Work    Work
	Waiting Waiting
	Tasks   Tasks  // nil: a context shows no tasks
	Boards  Boards // nil: a context shows no boards
	// Conn reaches another plane, for tool calls.
	Conn func(plane string) (grpc.ClientConnInterface, error)
	// Allowed says whether a role may call a method, given as "/service/Method"; nil:
	// every role may call all.
	Allowed func(role, method string) bool
	// MintRun makes the credential of a run.
	MintRun func(namespace, agentID, runID string) string
}

// Service is the agent plane.
type Service struct {
	agentv1.UnimplementedAgentServiceServer

	cfg     Config
	deps    Deps
	engine  *plane.Engine[*State]
	leases  *leases
	waiters waiters
	watches watches
	shares  *shares
	ailing  *ailing
	// supervision ends children and deletions.
	supervision *supervision
	// rounds lets one call at a time work on a turn's rounds: a runner that asks
	// again while its first call still runs waits for it and gets its answer.
	rounds   keylock.Locks[string]
	digests  digests
	profiles sync.Map // key -> profile, of agents that used tools
	stopping chan struct{}
	stopOnce sync.Once

	metrics      *metrics // nil: nothing is counted
	handovers    handovers
	asking       asking
	reservedMu   sync.Mutex
	reservations map[key]struct{}
	prepareTerm  time.Duration
	commitTerm   time.Duration
}

// New completes the configuration. Nothing is opened before Start.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Work == nil || deps.Waiting == nil || deps.Conn == nil || deps.MintRun == nil {
		return nil, errors.New("agent: Deps needs Work, Waiting, Conn and MintRun")
	}
	for namespace, weight := range cfg.Weights {
		if weight < 1 || weight > MaxWeight {
			return nil, fmt.Errorf("agent: the weight of namespace %q is %d; it must be 1 to %d", namespace, weight, MaxWeight)
		}
	}
	if cfg.MaxChildren < 0 {
		return nil, fmt.Errorf("agent: MaxChildren is %d; it must not be negative", cfg.MaxChildren)
	}
	if cfg.MaxChildren == 0 {
		cfg.MaxChildren = DefaultMaxChildren
	}
	return &Service{
		cfg: cfg, deps: deps, stopping: make(chan struct{}), reservations: map[key]struct{}{},
		shares: newShares(cfg.Weights), prepareTerm: prepareTerm, commitTerm: commitTerm,
		metrics: newMetrics(deps.Metrics),
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
	s.ailing = newAiling(s.deps.Clock, func(k key) {
		s.shares.touch(k.Namespace)
		s.waiters.wake(k)
	})
	s.supervision = newSupervision(s.deps.Clock, s.tend, s.untended)
	engine, err := plane.Open(ctx, plane.Config[*State]{
		Plane: Plane, Share: s.cfg.Share, New: NewState,
		Events: agentv1.File_quartet_agent_v1_agent_event_proto,
		Follow: follows(s.supervision.spared), React: react, OnApply: s.applied, OnCommit: s.committed, OnLoad: s.loaded,
	}, s.deps.Deps)
	if err != nil {
		return err
	}
	s.engine = engine
	s.supervision.start()
	s.leases.start(engine.StallTotal)
	s.ailing.due.Start()
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
	s.supervision.stop()
	s.leases.stop()
	s.ailing.due.Stop()
	err := s.engine.Close(ctx)
	s.metrics.forget(s.engine.All())
	return err
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
		if s.deps.Tracer.On() {
			s.tellTurn(ev, events)
		}
		if s.metrics != nil {
			s.metrics.count(ev)
		}
		if p, ok := ev.Payload.(*agentv1.TurnStarted); ok {
			term := turnTerm
			if s.handovers.isUnheard(p.GetTurn().GetRunId()) {
				term = retryTerm // it landed after its caller was told that it had not
			}
			s.leases.armFor(ref.Agent{Namespace: ev.Namespace, ID: ev.AgentID}, p.GetTurn().GetRunId(), term)
			s.asking.tell(acquireOf(ev.Namespace, p.GetTurn()))
		} else if t := endedTurn([]*journal.Event{ev}); t != nil {
			s.leases.disarm(ref.Agent{Namespace: ev.Namespace, ID: ev.AgentID}, t.GetRunId())
		}
		s.watches.tell(ev)
		s.supervision.heed(ev)
	}
}

// applied wakes a runner for what may make an agent ready. It prepares the turn
// while the frame is written, or waits with that: the frame of the turn itself is
// a fourth of the way from a trigger to its turn.
func (s *Service) applied(st *State, events []*journal.Event) (sequels int) {
	var comes []key // whose turn, or tick, is on its way
	for _, ev := range events {
		k := ref.Agent{Namespace: ev.Namespace, ID: ev.AgentID}
		switch ev.Payload.(type) {
		case *agentv1.MessageQueued, *agentv1.MessageRequeued, *agentv1.MessageDropped, *agentv1.AgentSpawned,
			*agentv1.AgentResumed, *agentv1.AgentStarted,
			*agentv1.TurnCompleted, *agentv1.TurnFailed, *agentv1.TurnInterrupted, *agentv1.TurnAborted:
			s.shares.touch(ev.Namespace)
			if s.waiters.wake(k) && st.lookup(k).takeable() && !slices.Contains(comes, k) {
				comes = append(comes, k)
			}
		case *agentv1.AgentWoken:
			// The scheduler of this process looks at the agent by now, and offers
			// a tick for the runner that waits for it.
			if a := st.lookup(k); a.idle() && s.waiters.count(k, a.rec) > 0 && s.engine.Hinted(k.Namespace, k.ID) && !slices.Contains(comes, k) {
				comes = append(comes, k)
			}
		}
	}
	return len(comes)
}
