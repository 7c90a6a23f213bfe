package work

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/homes"
)

// Plane is the name of this plane in journals, subjects and cursors.
const Plane = "work"

// Tasks is the part of the task plane that this plane calls.
type Tasks interface {
	// RunningTasks returns the tasks of an item that have not ended.
	RunningTasks(ctx context.Context, agentID, workItemID string) ([]RunningTask, error)
}

// Agents is the part of the agent plane that this plane calls.
type Agents interface {
	// AgentExists returns NOT_FOUND for an agent that was never created in the caller's
	// namespace, and AGENT_DELETED for one that is deleted or being deleted.
	AgentExists(ctx context.Context, agentID string) error
}

// Config holds the settings of the plane.
type Config struct {
	Home  string        // the directory of the agents' homes
	Share journal.Share // the partitions that this process may hold; zero: all
}

// Deps are what the plane needs of its process and of other planes.
type Deps struct {
	plane.Deps
	Tasks  Tasks
	Agents Agents
}

// Service is the work plane.
type Service struct {
	workv1.UnsafeWorkServiceServer
	workv1.UnsafeHomeServiceServer

	cfg    Config
	deps   Deps
	homes  *homes.Dir
	plans  *homes.Plans
	engine *plane.Engine[*State]
	files  plane.KeyLocks[fileKey] // held while a file is written

	knownMu sync.RWMutex
	known   map[plane.Key]struct{} // agents that exist, without those that this plane knows as deleted
	ended   int                    // how many agents this plane has learned to be deleted
}

// New validates the configuration. It opens nothing; see Start.
func New(cfg Config, deps Deps) (*Service, error) {
	if cfg.Home == "" {
		return nil, errors.New("work: Config.Home is not set")
	}
	if deps.Tasks == nil || deps.Agents == nil {
		return nil, errors.New("work: Deps needs Tasks and Agents")
	}
	return &Service{cfg: cfg, deps: deps, known: map[plane.Key]struct{}{}}, deps.Complete()
}

// Name implements life.Service.
func (s *Service) Name() string { return Plane }

// Register registers the plane's gRPC services.
func (s *Service) Register(srv grpc.ServiceRegistrar) {
	workv1.RegisterWorkServiceServer(srv, s)
	workv1.RegisterHomeServiceServer(srv, s)
}

// Start opens the directory of homes and the journal, and begins to follow the waiting and
// the agent plane.
func (s *Service) Start(ctx context.Context) error {
	if err := s.deps.Complete(); err != nil {
		return err
	}
	var err error
	if s.homes, err = homes.OpenDir(s.cfg.Home); err != nil {
		return fmt.Errorf("work: home %s: %w", s.cfg.Home, err)
	}
	s.plans = homes.NewPlans(s.homes)
	count := newTransitionCounts(s.deps.Metrics)
	s.engine, err = plane.Open(ctx, plane.Config[*State]{
		Plane: Plane, Share: s.cfg.Share, New: NewState,
		Events: workv1.File_quartet_work_v1_work_event_proto, Dependent: dependent, Erasing: s.eraseHome,
		OnCommit: func(partition int, events []*journal.Event) {
			count.Count(partition, events)
			s.forget(events)
		},
		Follow: []plane.Followed{{
			Plane: "waiting", Types: waitTypes,
			Registry: journal.NewRegistry(waitingv1.File_quartet_waiting_v1_waiting_event_proto),
		}, {
			Plane: "agent", Types: []string{"agent_deleting"},
			Registry: journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto),
		}},
		React: react,
	}, s.deps.Deps)
	if err != nil {
		return errors.Join(err, s.homes.Close())
	}
	if err := s.engine.Follow(ctx); err != nil {
		return errors.Join(err, s.Stop(ctx))
	}
	return nil
}

// Stop closes the journal and then the directory of homes. It is idempotent.
func (s *Service) Stop(ctx context.Context) error {
	if s.engine == nil {
		return nil
	}
	err := s.engine.Close(ctx)
	s.plans.Close()
	return errors.Join(err, s.homes.Close())
}

// Ready returns nil while the journal is open and can be written.
func (s *Service) Ready() error { return s.engine.Ready() }

// admit checks that the caller may act for the agent (SPEC X4, W12), and that agentID is a valid name. It does not
// check that the agent exists. Which roles may call a method, the edges have checked.
func admit(actor rpc.Actor, agentID string) error {
	if err := fault.Name("agent_id", agentID); err != nil {
		return err
	}
	return rpc.CheckAgent(actor, agentID)
}

// exists returns nil if an agent exists, and otherwise the error of Agents.AgentExists. It
// remembers the agents that exist and does not ask the agent plane about them again until this
// plane has learned of their deletion.
func (s *Service) exists(ctx context.Context, k plane.Key) error {
	s.knownMu.RLock()
	_, ok := s.known[k]
	endedBefore := s.ended
	s.knownMu.RUnlock()
	if ok {
		return nil
	}
	if err := s.deps.Agents.AgentExists(ctx, k.ID); err != nil {
		return err
	}
	s.knownMu.Lock()
	defer s.knownMu.Unlock()
	if s.ended == endedBefore { // otherwise it may be this agent that was deleted
		s.known[k] = struct{}{}
	}
	return nil
}

// forget removes the agents of whose deletion events tell from those that are known to exist.
func (s *Service) forget(events []*journal.Event) {
	for _, ev := range events {
		if _, deleted := ev.Payload.(*workv1.OwnerDeleted); deleted {
			s.knownMu.Lock()
			s.ended++ // so that an exists that is asking meanwhile does not remember the agent
			delete(s.known, plane.KeyOf(ev.Namespace, ev.AgentID))
			s.knownMu.Unlock()
		}
	}
}

// neverMade returns NOT_FOUND for an agent that never existed, so that it does not look like an agent
// without items. It returns nil if the check fails, and for calls of other services.
func (s *Service) neverMade(ctx context.Context, actor rpc.Actor, agentID string) error {
	return plane.NeverMade(ctx, agentID, func(ctx context.Context, agentID string) error {
		return s.exists(ctx, plane.KeyOf(actor.Namespace, agentID))
	})
}

// Stalled returns for how long the journal has been unable to write, 0 while it can.
func (s *Service) Stalled() time.Duration { return s.engine.Stalled() }
