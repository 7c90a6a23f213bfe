package task

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/task/model"
	"quartet/services/task/output"
	"quartet/services/task/rules"
)

// Plane is the name of this plane in journals, subjects and cursors.
const Plane = "task"

// LeaseTerm is how long a worker may be silent about a command (SPEC X12).
const LeaseTerm = 30 * time.Second

// Config is what an operator sets.
type Config struct {
	Share     journal.Share // the partitions that it holds; zero: all of them
	LeaseTerm time.Duration // default LeaseTerm
}

// Deps is what this plane needs of its process.
type Deps struct {
	plane.Deps
	// Output keeps what commands write.
	Output output.Store
	// Workspace says where an agent's commands run, NOT_FOUND for an agent that
	// was never made. nil takes every agent and leaves the choice to the worker.
	Workspace func(ctx context.Context, agentID string) (Workspace, error)
	// OwnsItem refuses an item that is not the agent's. nil takes every item.
	OwnsItem func(ctx context.Context, agentID, workItemID string) error
	// Children reaches the agent plane for handles of children. nil: they take
	// no input and say nothing.
	Children Children
}

// Workspace is where an agent's commands run.
type Workspace struct {
	// Root is their directory unless they name another; empty: the worker's choice.
	Root string
	// Worktree, if the agent has one, says which worker they are pinned to (SPEC T4).
	Worktree *taskv1.Worktree
}

// Service is the task plane.
type Service struct {
	taskv1.UnimplementedTaskServiceServer
	taskv1.UnimplementedWorkerServiceServer
	taskv1.UnimplementedWorktreeServiceServer

	cfg     Config
	deps    Deps
	metrics *metrics // nil: nothing is counted
	clk     clock.Clock
	output  output.Store
	engine  *plane.Engine[*model.State]

	watches *watches
	lives   *leases
	floor   *floor
	errands errands

	ctx    context.Context //nolint:containedctx // of what runs between requests; ends with Stop
	cancel context.CancelFunc
	quit   <-chan struct{}

	mu       sync.Mutex // guards stopping, and that running grows only before it
	stopping bool
	running  sync.WaitGroup
}

// New completes the configuration. Nothing is opened before Start.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Output == nil {
		return nil, errors.New("task: Deps needs Output")
	}
	if err := deps.Complete(); err != nil {
		return nil, err
	}
	if cfg.LeaseTerm <= 0 {
		cfg.LeaseTerm = LeaseTerm
	}
	s := &Service{cfg: cfg, deps: deps, clk: deps.Clock, output: deps.Output, watches: newWatches(), floor: newFloor(), metrics: newMetrics(deps.Metrics)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.quit = s.ctx.Done()
	s.lives = newLeases(s.clk, cfg.LeaseTerm, func(one *lease) { s.background(func() { s.lapse(one) }) })
	return s, nil
}

// Name is the module's name.
func (s *Service) Name() string { return Plane }

// Register puts the services of the plane on a server.
func (s *Service) Register(srv grpc.ServiceRegistrar) {
	taskv1.RegisterTaskServiceServer(srv, s)
	taskv1.RegisterWorkerServiceServer(srv, s)
	taskv1.RegisterWorktreeServiceServer(srv, s)
}

// Start opens the journal, gives every live lease one full term (SPEC X12),
// and begins to hand commands to workers.
func (s *Service) Start(ctx context.Context) error {
	var err error
	s.engine, err = plane.Open(ctx, plane.Config[*model.State]{
		Plane: Plane, Share: s.cfg.Share, New: model.NewState,
		Events:   taskv1.File_quartet_task_v1_task_event_proto,
		OnCommit: s.committed, Follow: follows(), React: rules.React,
	}, s.deps.Deps)
	if err != nil {
		return err
	}
	for _, p := range s.engine.All() {
		held, _, err := journal.View(ctx, p, func(st *model.State) ([]model.HeldTask, error) { return st.HeldTasks(nil), nil })
		if err != nil {
			return errors.Join(err, s.Stop(ctx))
		}
		for _, h := range held {
			s.lives.arm(h.Namespace, h.Worker, h.Task, p.StallTotal())
		}
	}
	s.lives.due.Start()
	s.background(s.dispatch)
	if err := s.engine.Follow(ctx); err != nil {
		return errors.Join(err, s.Stop(ctx))
	}
	return nil
}

// Stop ends the streams of workers, which keep their commands and come back to
// the next process, and closes the journal. It is idempotent.
func (s *Service) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.cancel()
	s.lives.due.Stop()
	s.running.Wait()
	if s.engine == nil {
		return nil
	}
	err := s.engine.Close(ctx)
	s.metrics.forget(s.engine.All())
	return err
}

// Ready is nil once the journal is open and while it can be written.
func (s *Service) Ready() error {
	if s.engine == nil {
		return errors.New("task: not started")
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

// Release ends streams and waits of callers, so that a stop need not wait for
// them. Workers keep their commands and come back to the next process.
func (s *Service) Release() { s.cancel() }

// background runs f, for which Stop waits; not at all once Stop began.
func (s *Service) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.running.Go(f)
	}
}

func (s *Service) log() *zap.Logger { return s.deps.Logger }

// agentActor gives who may act for an agent: itself, an operator or a service (SPEC X15).
func (s *Service) agentActor(ctx context.Context, agentID string) (journal.Actor, error) {
	return admit(ctx, agentID, rpc.RoleAgent, rpc.RoleOperator, rpc.RoleAdmin, rpc.RoleService)
}

// reader gives who may read an agent's tasks.
func (s *Service) reader(ctx context.Context, agentID string) (journal.Actor, error) {
	return admit(ctx, agentID, rpc.RoleAgent, rpc.RoleOperator, rpc.RoleAdmin, rpc.RoleRunner, rpc.RoleService)
}

func admit(ctx context.Context, agentID string, roles ...string) (journal.Actor, error) {
	actor := rpc.ActorFrom(ctx)
	if err := rpc.RequireRole(ctx, roles...); err != nil {
		return journal.Actor{}, err
	}
	return journal.Actor(actor), rpc.CheckAgent(actor, agentID)
}

// reachOf says whether a command's worker is connected and how much input it
// has confirmed.
func (s *Service) reachOf(taskID string) rules.Reach {
	one := s.lives.get(taskID)
	if one == nil {
		return rules.Reach{}
	}
	return rules.Reach{Connected: s.floor.find(one.worker) != nil, ConfirmedInput: s.lives.confirmed(one)}
}

// Deadlines gives the calls that may outlive a server's default deadline
// because they wait: for a command's end, or for output.
func Deadlines() map[string]time.Duration {
	return map[string]time.Duration{
		taskv1.TaskService_ExecCommand_FullMethodName:   rules.MaxYield + 10*time.Second,
		taskv1.TaskService_GetTaskOutput_FullMethodName: MaxBlock + 4*time.Second,
	}
}
