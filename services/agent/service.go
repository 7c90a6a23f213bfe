package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/watch"
	"quartet/services/agent/briefs"
	"quartet/services/agent/children"
	"quartet/services/agent/control"
	"quartet/services/agent/directory"
	"quartet/services/agent/facts"
	"quartet/services/agent/messages"
	"quartet/services/agent/projection"
	"quartet/services/agent/runners"
	"quartet/services/agent/state"
	"quartet/services/agent/toolcalls"
	"quartet/services/agent/turns"
)

// Plane is the name of this plane in journals, subjects and cursors.
const Plane = "agent"

// MaxWeight is the largest weight that Config.Weights may give a namespace.
const MaxWeight = runners.MaxWeight

// DefaultMaxChildren is the default of Config.MaxChildren.
const DefaultMaxChildren = children.DefaultMaxChildren

// Deadlines returns the methods whose calls may last longer than a server's default
// deadline, with the deadline of each.
func Deadlines() map[string]time.Duration { return turns.Deadlines() }

// Work is the part of the work plane that this plane uses on its own account. Calls of
// tools go by the table in package tools.
type Work interface {
	projection.Work
	briefs.Work
}

// Waiting is the part of the waiting plane that this plane uses on its own account.
type Waiting = projection.Waiting

// Tasks is the part of the task plane that this plane uses on its own account.
type Tasks = projection.Tasks

// Boards is the part of the board plane that this plane uses on its own account.
type Boards = projection.Boards

// Config is what an operator sets.
type Config struct {
	Share journal.Share // the partitions that this instance holds; zero: all of them
	// Weights are the namespaces' shares of the turns that shared runners take
	// (SPEC D7), 1 to MaxWeight; the default is 1.
	Weights map[string]int
	// MaxChildren is how many children an agent may supervise at a time (SPEC A2);
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
	// Allowed reports whether a role may call a method, given as "/service/Method";
	// nil: every role may call all.
	Allowed func(role, method string) bool
	// Within refuses the request of a tool call that is beyond what the actor's key is limited to; nil refuses none.
	Within func(a rpc.Actor, method string, req any) error
	// MintRun makes the credential of a run.
	MintRun func(namespace, agentID, runID string) string
}

// The parts of the service, under distinct names so that they can be embedded side by
// side. Each implements the methods of its operations.
type (
	turnService       = turns.Service
	callService       = toolcalls.Service
	briefService      = briefs.Service
	projectionService = projection.Service
	childService      = children.Service
	controlService    = control.Service
	factService       = facts.Service
	messageService    = messages.Service
	directoryService  = directory.Service
)

// Service is the agent plane. Its parts are nil until Start.
type Service struct {
	agentv1.UnsafeAgentServiceServer
	*turnService
	*callService
	*briefService
	*projectionService
	*childService
	*controlService
	*factService
	*messageService
	*directoryService

	cfg    Config
	deps   Deps
	engine *state.Engine

	leases       *runners.Leases
	waiters      runners.Waiters
	changes      watch.Hub[plane.Key] // of turns, for WatchTurn
	shares       *runners.Shares
	backoff      *runners.Backoff
	deliveries   runners.Deliveries
	granted      watch.Hub[state.TurnRequest] // turns, by the request of AcquireTurn that got one
	reservations runners.Reservations
	supervisor   *children.Supervisor

	stopping chan struct{}
	stopOnce sync.Once
	metrics  *metrics // nil: nothing is counted

	// prepareTimeout and commitTimeout are set by tests; 0: the default.
	prepareTimeout, commitTimeout time.Duration
}

// New checks the configuration and fills in its defaults. Nothing is opened before
// Start.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Work == nil || deps.Waiting == nil || deps.Conn == nil || deps.MintRun == nil {
		return nil, errors.New("agent: Deps needs Work, Waiting, Conn and MintRun")
	}
	for namespace, weight := range cfg.Weights {
		if weight < 1 || weight > MaxWeight {
			return nil, fmt.Errorf("agent: the weight of namespace %q is %d; it must be 1 to %d", namespace, weight,
				MaxWeight)
		}
	}
	if cfg.MaxChildren < 0 {
		return nil, fmt.Errorf("agent: MaxChildren is %d; it must not be negative", cfg.MaxChildren)
	}
	cfg.MaxChildren = cmp.Or(cfg.MaxChildren, DefaultMaxChildren)
	return &Service{
		cfg: cfg, deps: deps, stopping: make(chan struct{}),
		shares: runners.NewShares(cfg.Weights), metrics: newMetrics(deps.Metrics),
	}, deps.Complete()
}

// Name returns the module's name.
func (s *Service) Name() string { return Plane }

// Register puts the service on a server.
func (s *Service) Register(srv grpc.ServiceRegistrar) { agentv1.RegisterAgentServiceServer(srv, s) }

// Start opens the journal, gives every open turn a full lease, and begins to follow the
// other planes.
func (s *Service) Start(ctx context.Context) error {
	if err := s.deps.Complete(); err != nil {
		return err
	}
	s.leases = runners.NewLeases(s.deps.Clock, func(ctx context.Context, k plane.Key, runID string) {
		s.Expire(ctx, k, runID)
	})
	s.backoff = runners.NewBackoff(s.deps.Clock, func(k plane.Key) {
		s.shares.MarkReady(k.Namespace)
		s.waiters.Wake(k)
	})
	s.supervisor = children.NewSupervisor(s.deps.Clock, func(ctx context.Context, k plane.Key) (bool, error) {
		return s.Reconcile(ctx, k)
	}, s.reportSupervisionError)
	engine, err := plane.Open(ctx, plane.Config[*state.State]{
		Plane: Plane, Share: s.cfg.Share, New: state.NewState,
		Events: agentv1.File_quartet_agent_v1_agent_event_proto,
		Follow: follows(s.supervisor.EnqueueChild), React: state.React, OnApply: s.applied, OnCommit: s.committed,
		OnLoad: s.loaded,
	}, s.deps.Deps)
	if err != nil {
		return err
	}
	s.engine = engine
	s.assemble()
	s.supervisor.Start()
	s.leases.Start(func(k plane.Key) (time.Duration, bool) { return engine.Stall(k.Namespace, k.ID) })
	s.backoff.Start()
	if err := engine.Follow(ctx); err != nil {
		return errors.Join(err, s.Stop(ctx))
	}
	return nil
}

// assemble makes the parts of the service over its open partitions.
func (s *Service) assemble() {
	d := s.deps
	s.briefService = briefs.New(s.engine, briefs.Deps{Work: d.Work})
	s.callService = toolcalls.New(s.engine, toolcalls.Deps{
		Conn: d.Conn, Allowed: d.Allowed, Within: d.Within, Tracer: d.Tracer,
		Briefs: s.briefService,
	})
	s.projectionService = projection.New(s.engine, projection.Deps{
		Work: d.Work, Waiting: d.Waiting, Tasks: d.Tasks, Boards: d.Boards, Conn: d.Conn, Logger: d.Logger,
		Calls: s.callService,
		Clock: d.Clock, History: d.History,
	})
	s.turnService = turns.New(s.engine, turns.Deps{
		Work: d.Work, Clock: d.Clock, WaitClock: d.WaitClock, IDs: d.IDs, Logger: d.Logger, Tracer: d.Tracer,
		MintRun: d.MintRun, Arrive: d.Arrive,
		Briefs: s.briefService, Calls: s.callService, Projections: s.projectionService,
		Leases: s.leases, Waiters: &s.waiters, Shares: s.shares, Backoff: s.backoff, Granted: &s.granted,
		Deliveries: &s.deliveries, Changes: &s.changes, Reservations: &s.reservations, Stopping: s.stopping,
		PrepareTimeout: s.prepareTimeout, CommitTimeout: s.commitTimeout,
	})
	s.childService = children.New(s.engine, children.Deps{
		Work: d.Work, Waiting: d.Waiting, Conn: d.Conn, Clock: d.Clock, Logger: d.Logger,
		Projections: s.projectionService, Supervisor: s.supervisor, MaxChildren: s.cfg.MaxChildren,
	})
	s.controlService = control.New(s.engine)
	s.factService = facts.New(s.engine, facts.Deps{Leases: s.leases, Waiters: &s.waiters})
	s.messageService = messages.New(s.engine, messages.Deps{Work: d.Work, Waiting: d.Waiting})
	s.directoryService = directory.New(s.engine, directory.Deps{Work: d.Work, Waiting: d.Waiting})
}

// Stop ends long polls and streams, then closes the journal. It is idempotent.
func (s *Service) Stop(ctx context.Context) error {
	s.Release()
	if s.engine == nil {
		return nil
	}
	s.supervisor.Stop()
	s.leases.Stop()
	s.backoff.Stop()
	err := s.engine.Close(ctx)
	s.metrics.removeGauges(s.engine.All())
	return err
}

// Ready returns nil once the journal is open and while it can be written.
func (s *Service) Ready() error { return s.engine.Ready() }

// Stalled returns how long the journal has been unable to write, 0 while it can.
func (s *Service) Stalled() time.Duration { return s.engine.Stalled() }

// Release ends long polls and streams, so that a stop need not wait for them.
func (s *Service) Release() { s.stopOnce.Do(func() { close(s.stopping) }) }

// loaded prepares for a state that was just loaded, after a start or after another
// writer had the partition: every open turn gets a full lease, and the supervisor
// enqueues what the state leaves to be done. The load gets an id, see state.State.LoadID.
func (s *Service) loaded(st *state.State) {
	st.LoadID = state.LoadID(s.deps.IDs.New("load_"))
	for namespace := range st.Ready {
		s.shares.MarkReady(namespace)
	}
	s.supervisor.Load(st)
	var open []plane.Key
	for k, a := range st.Resident() {
		if a.OpenTurn != nil {
			open = append(open, k)
		}
	}
	slices.SortFunc(open, plane.Key.Compare) // leases that end at one time end in this order
	for _, k := range open {
		s.leases.Arm(k, st.Lookup(k).OpenTurn.Record.GetRunId())
	}
}

// committed runs for every durable frame: it grants and releases the leases of turns, counts
// metrics, and notifies watchers and the supervisor. It runs in the journal's loop, so it
// only signals.
func (s *Service) committed(_ int, events []*journal.Event) {
	for _, ev := range events {
		if s.deps.Tracer.On() {
			turns.RecordSpan(s.deps.Tracer, ev, events)
		}
		if s.metrics != nil {
			s.metrics.count(ev)
		}
		k := plane.Key{Namespace: ev.Namespace, ID: ev.AgentID}
		if p, ok := ev.Payload.(*agentv1.TurnStarted); ok {
			term := runners.Term
			if s.deliveries.IsUndelivered(p.GetTurn().GetRunId()) {
				term = turns.RetryTerm // the frame was stored after its caller had been refused
			}
			s.leases.ArmFor(k, p.GetTurn().GetRunId(), term)
			s.granted.Notify(state.RequestOf(ev.Namespace, p.GetTurn()))
		} else if t := state.EndedTurn([]*journal.Event{ev}); t != nil {
			s.leases.Release(k, t.GetRunId())
		}
		if _, ok := ev.Payload.(*agentv1.AgentDeleted); ok {
			s.Forget(k)
		}
		if turns.ChangesTurn(ev) {
			s.changes.Notify(k)
		}
		s.supervisor.Observe(ev)
	}
}

// applied runs for every frame before it is durable. It wakes a runner for each agent
// that may have become ready, so that the runner prepares the turn while the frame is
// written: a frame takes a quarter of the time from a trigger to its turn. It returns
// how many commands are expected to follow, see journal.Config.OnApply.
func (s *Service) applied(st *state.State, events []*journal.Event) (expected int) {
	var following []plane.Key // agents for which a turn or a tick is expected
	for _, ev := range events {
		k := plane.Key{Namespace: ev.Namespace, ID: ev.AgentID}
		switch ev.Payload.(type) {
		case *agentv1.MessageQueued, *agentv1.MessageRequeued, *agentv1.MessageDropped, *agentv1.AgentSpawned,
			*agentv1.AgentResumed, *agentv1.AgentStarted,
			*agentv1.TurnCompleted, *agentv1.TurnFailed, *agentv1.TurnInterrupted, *agentv1.TurnAborted:
			s.shares.MarkReady(ev.Namespace)
			if s.waiters.Wake(k) && st.Lookup(k).CanTakeTurn() && !slices.Contains(following, k) {
				following = append(following, k)
			}
		case *agentv1.AgentWoken:
			// The scheduler of this process is already deciding for the agent, and
			// offers a tick for the runner that waits for it.
			if a := st.Lookup(k); a.IsIdle() && s.waiters.Count(k, a.Record) > 0 &&
				s.engine.Hinted(k.Namespace, k.ID) && !slices.Contains(following, k) {
				following = append(following, k)
			}
		}
	}
	return len(following)
}

func (s *Service) reportSupervisionError(k plane.Key, err error) {
	s.deps.Logger.Warn("an agent could not be supervised; trying again", zap.String("namespace", k.Namespace),
		zap.String("agent_id", k.ID), zap.Error(err))
}
