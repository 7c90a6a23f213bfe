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
	"quartet/pkg/keylock"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/homes"
)

// Plane is the name of this plane in journals, subjects and cursors.
const Plane = "work"

// Tasks is what this plane asks of the task plane: what still runs for an item.
type Tasks interface {
	RunningTasks(ctx context.Context, agentID, workItemID string) ([]RunningTask, error)
}

// Agents is what this plane asks of the agent plane. AgentExists is NOT_FOUND
// for an agent that was never made in the caller's namespace.
type Agents interface {
	AgentExists(ctx context.Context, agentID string) error
}

// Config is what an operator sets.
type Config struct {
	Home  string        // the directory of the agents' homes
	Share journal.Share // the partitions that it holds; zero: all of them
}

// Deps is what this plane needs of its process and of other planes.
type Deps struct {
	plane.Deps
	Tasks  Tasks
	Agents Agents
}

// Service is the work plane.
type Service struct {
	workv1.UnimplementedWorkServiceServer
	workv1.UnimplementedHomeServiceServer

	cfg    Config
	deps   Deps
	homes  *homes.Dir
	plans  *homes.Plans
	engine *plane.Engine[*State]
	files  keylock.Locks[fileKey]

	knownMu sync.RWMutex
	known   map[key]struct{} // agents that were seen to exist
}

// New completes the configuration. Nothing is opened before Start.
func New(cfg Config, deps Deps) (*Service, error) {
	if cfg.Home == "" {
		return nil, errors.New("work: Config.Home is not set")
	}
	if deps.Tasks == nil || deps.Agents == nil {
		return nil, errors.New("work: Deps needs Tasks and Agents")
	}
	return &Service{cfg: cfg, deps: deps, known: map[key]struct{}{}}, deps.Complete()
}

// Name is the module's name.
func (s *Service) Name() string { return Plane }

// Register puts the service on a server.
func (s *Service) Register(srv grpc.ServiceRegistrar) {
	workv1.RegisterWorkServiceServer(srv, s)
	workv1.RegisterHomeServiceServer(srv, s)
}

// Start opens the plan folder and the journal and begins to follow the waiting plane.
func (s *Service) Start(ctx context.Context) error {
	if err := s.deps.Complete(); err != nil {
		return err
	}
	var err error
	if s.homes, err = homes.OpenDir(s.cfg.Home); err != nil {
		return fmt.Errorf("work: home %s: %w", s.cfg.Home, err)
	}
	s.plans = homes.NewPlans(s.homes)
	s.engine, err = plane.Open(ctx, plane.Config[*State]{
		Plane: Plane, Share: s.cfg.Share, New: NewState,
		Events: workv1.File_quartet_work_v1_work_event_proto, Dependent: dependent, OnCommit: newMetrics(s.deps.Metrics).count,
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

// Stop closes the journal, then the plan folder. It is idempotent.
func (s *Service) Stop(ctx context.Context) error {
	if s.engine == nil {
		return nil
	}
	return errors.Join(s.engine.Close(ctx), s.homes.Close())
}

// Ready is nil once the journal is open and while it can be written.
func (s *Service) Ready() error { return s.engine.Ready() }

// admit checks that the caller may speak for the agent (SPEC X4, W12). Outside
// systems and workers have no business with items.
func (s *Service) admit(actor rpc.Actor, agentID string) error {
	if actor.Role == rpc.RoleIntegration || actor.Role == rpc.RoleWorker {
		return fault.PermissionDenied.Newf("role %s does not see work items", actor.Role)
	}
	if err := fault.Name("agent_id", agentID); err != nil {
		return err
	}
	return rpc.CheckAgent(actor, agentID)
}

// writers may change items: the agent itself, an operator, and other services
// for them (SPEC W12, X15). A runner acts through its run's credential.
var writers = []string{rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleAgent, rpc.RoleService}

// admitWrite is admit for calls that change something.
func (s *Service) admitWrite(ctx context.Context, actor rpc.Actor, agentID string) error {
	if err := rpc.RequireRole(ctx, writers...); err != nil {
		return err
	}
	return s.admit(actor, agentID)
}

// admitAgent is admitWrite for calls that bring something into being: the agent
// must exist. An agent's id is never taken back, so one look lasts.
func (s *Service) admitAgent(ctx context.Context, actor rpc.Actor, agentID string) error {
	if err := s.admitWrite(ctx, actor, agentID); err != nil {
		return err
	}
	return s.exists(ctx, key{actor.Namespace, agentID})
}

func (s *Service) exists(ctx context.Context, k key) error {
	s.knownMu.RLock()
	_, ok := s.known[k]
	s.knownMu.RUnlock()
	if ok {
		return nil
	}
	if err := s.deps.Agents.AgentExists(ctx, k.id); err != nil {
		return err
	}
	s.knownMu.Lock()
	defer s.knownMu.Unlock()
	s.known[k] = struct{}{}
	return nil
}

// neverMade refuses to say that an agent has nothing when there is no such agent.
func (s *Service) neverMade(ctx context.Context, actor rpc.Actor, agentID string) error {
	return plane.NeverMade(ctx, agentID, func(ctx context.Context, agentID string) error {
		return s.exists(ctx, key{actor.Namespace, agentID})
	})
}

// Stalled is how long the journal has been unable to write.
func (s *Service) Stalled() time.Duration { return s.engine.Stalled() }
