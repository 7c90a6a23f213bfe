package task

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/watch"
	"quartet/services/task/model"
	"quartet/services/task/output"
	"quartet/services/task/rules"
	"quartet/services/task/workers"
)

// Plane is the name of this plane in journals, subjects and cursors.
const Plane = "task"

// LeaseTerm is by default how long a worker may be silent about a command (SPEC X12).
const LeaseTerm = 30 * time.Second

// Config is what an operator sets.
type Config struct {
	Share     journal.Share // the partitions that this process holds; zero: all of them
	LeaseTerm time.Duration // default LeaseTerm
	// KeepOutput is how long Deps.Output keeps what commands wrote; 0: always.
	KeepOutput time.Duration
}

// Deps is what this plane needs of its process.
type Deps struct {
	plane.Deps
	// Output stores what commands write. Required.
	Output output.Store
	// Workspace returns where the commands of an agent run. It returns NOT_FOUND for an
	// agent that never existed, AGENT_DELETED for a deleted one, and RUN_STALE if the
	// caller is a run that does not hold its agent any more. Nil: every agent exists, and
	// workers choose the directory.
	Workspace func(ctx context.Context, agentID string) (Workspace, error)
	// OwnsItem refuses a work item that is not the agent's. Nil: every item is.
	OwnsItem func(ctx context.Context, agentID, workItemID string) error
	// Children reaches supervised children. Nil: their handles accept no input and
	// have no text.
	Children Children
}

// Workspace is where the commands of an agent run.
type Workspace struct {
	// Root is the working directory of commands that name none. Empty: the worker's
	// choice.
	Root string
	// Worktree, if the agent has one, names the only worker that may run its commands
	// (SPEC T4).
	Worktree *taskv1.Worktree
}

// Service is the task plane.
type Service struct {
	taskv1.UnsafeTaskServiceServer
	taskv1.UnsafeWorkerServiceServer
	taskv1.UnsafeWorktreeServiceServer

	cfg     Config
	deps    Deps
	metrics *metrics // nil: nothing is counted
	clk     clock.Clock
	output  output.Store
	engine  *plane.Engine[*model.State]
	workers *workers.Hub
	remover *remover
	watches watch.Hub[string] // by task id
}

// New returns a service that is not started. It completes cfg and deps with defaults.
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
	s := &Service{cfg: cfg, deps: deps, clk: deps.Clock, output: deps.Output, metrics: newMetrics(deps.Metrics)}
	s.remover = newRemover(deps.Output, deps.Logger, s.leftOf)
	s.workers = workers.New(workers.Config{
		Clock: deps.Clock, IDs: deps.IDs, Logger: deps.Logger, Output: deps.Output, LeaseTerm: cfg.LeaseTerm,
		Watches: &s.watches,
	})
	return s, nil
}

// Name returns the module's name.
func (s *Service) Name() string { return Plane }

// Register puts the services of the plane on a server.
func (s *Service) Register(srv grpc.ServiceRegistrar) {
	taskv1.RegisterTaskServiceServer(srv, s)
	taskv1.RegisterWorkerServiceServer(srv, s)
	taskv1.RegisterWorktreeServiceServer(srv, s)
}

// Start opens the journal, gives every running command a lease with a full term
// (SPEC X12), and begins to give queued commands to workers.
func (s *Service) Start(ctx context.Context) error {
	var err error
	s.engine, err = plane.Open(ctx, plane.Config[*model.State]{
		Plane: Plane, Share: s.cfg.Share, New: model.NewState,
		Events:   taskv1.File_quartet_task_v1_task_event_proto,
		OnCommit: s.committed, OnLoad: s.loaded, Follow: follows(), React: rules.React,
	}, s.deps.Deps)
	if err != nil {
		return err
	}
	s.remover.start()
	if err := s.workers.Start(ctx, s.engine); err != nil {
		return errors.Join(err, s.Stop(ctx))
	}
	if err := s.engine.Follow(ctx); err != nil {
		return errors.Join(err, s.Stop(ctx))
	}
	return nil
}

// committed handles durable events. It runs in a partition's loop and never
// blocks.
func (s *Service) committed(_ int, events []*journal.Event) {
	for _, ev := range events {
		if s.metrics != nil {
			s.metrics.count(ev)
		}
		s.workers.Committed(ev)
		s.noteDeleted(ev)
		if s.watches.Active() {
			s.watches.Notify(ev.TaskID)
		}
	}
}

// Release ends the streams of workers and the waits of callers, so that a stop
// need not wait for them. The workers' commands continue, and the workers connect
// to the next server process.
func (s *Service) Release() {
	s.watches.Stop()
	s.workers.Release()
}

// Stop releases workers and callers, waits for what runs in the background and
// closes the journal. It is idempotent.
func (s *Service) Stop(ctx context.Context) error {
	s.watches.Stop()
	s.workers.Stop()
	s.remover.stop()
	if s.engine == nil {
		return nil
	}
	err := s.engine.Close(ctx)
	s.metrics.forget(s.engine.All())
	return err
}

// Ready returns nil once the journal is open and while it can be written.
func (s *Service) Ready() error { return s.engine.Ready() }

// Stalled returns how long the journal has been unable to write; 0 while it can.
func (s *Service) Stalled() time.Duration { return s.engine.Stalled() }

// Quiesce waits until everything that was requested of this plane before is on
// disk. After that the plane writes nothing by itself until a worker reports or
// the clock moves. It is for tests.
func (s *Service) Quiesce(ctx context.Context) error {
	s.workers.Settle()
	err := s.engine.Settle(ctx)
	s.remover.settle()
	return err
}

// Connect serves the stream of a worker until it ends.
func (s *Service) Connect(stream grpc.BidiStreamingServer[taskv1.ConnectRequest, taskv1.ConnectResponse]) error {
	return s.workers.Connect(stream)
}

// admit returns the caller if it may act for the agent. Which roles may call a method, the edges have checked.
func admit(ctx context.Context, agentID string) (journal.Actor, error) {
	actor := rpc.ActorFrom(ctx)
	return plane.Recorded(actor), rpc.CheckAgent(actor, agentID)
}

// Deadlines returns the deadlines of calls that wait, for a command to end or for
// output, and may take longer than a server's default deadline.
func Deadlines() map[string]time.Duration {
	return map[string]time.Duration{
		taskv1.TaskService_ExecCommand_FullMethodName:   rules.MaxYield + 10*time.Second,
		taskv1.TaskService_GetTaskOutput_FullMethodName: MaxBlock + 4*time.Second,
	}
}
