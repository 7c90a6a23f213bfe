package board

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/watch"
	"quartet/services/board/model"
	"quartet/services/board/rules"
	"quartet/services/board/wal"
	"quartet/services/board/workers"
)

// Plane is the name of this plane in journals, subjects and cursors.
const Plane = "board"

// Defaults of Config.
const (
	DefaultLeaseTerm   = 300 * time.Second
	DefaultCancelWait  = 30 * time.Second
	DefaultTokenBudget = 1200
)

// Config is what an operator sets.
type Config struct {
	Share journal.Share // the partitions that this process holds; zero: all of them
	// LeaseTerm is how long a worker may be silent about a step: 1 s to 24 h; 0 is
	// DefaultLeaseTerm.
	LeaseTerm time.Duration
	// CancelWait is how long FailBoard and CancelBoard wait for workers to stop: at
	// most 5 min; 0 is DefaultCancelWait.
	CancelWait time.Duration
	// TokenBudget bounds the summary of boards that a prompt gets, in tokens of 4 bytes; 0 is
	// DefaultTokenBudget.
	TokenBudget int
}

// Deps is what this plane needs of its process and of other planes.
type Deps struct {
	plane.Deps
	// Orchestrates reports whether an agent's profile has boards. Nil: every profile
	// has.
	Orchestrates func(ctx context.Context, agentID string) (bool, error)
	// MintRun makes the credential of a worker's run. Required.
	MintRun func(namespace, workerID, runID string) string
}

// boardWatch names a board in watches.
type boardWatch struct{ namespace, session, board string }

// Service is the board plane.
type Service struct {
	boardv1.UnsafeBoardServiceServer
	boardv1.UnsafeBoardWorkerServiceServer

	cfg     Config
	deps    Deps
	engine  *plane.Engine[*model.State]
	leases  *workers.Leases
	workers *workers.Hub
	// endings has the boards that are being failed or cancelled, due when they end
	// whether their workers have stopped or not.
	endings     *clock.Due
	watches     watch.Hub[boardWatch] // notified of every event of a board
	checkpoints wal.Checkpoints       // hashes of lines that were read
	metrics     *metrics              // nil: nothing is counted

	ctx    context.Context //nolint:containedctx // of what runs between requests; ends with Release
	cancel context.CancelFunc

	mu       sync.Mutex // guards stopping; running grows only under mu, while stopping is false
	stopping bool
	running  sync.WaitGroup
}

// New returns a service that is not started. It completes cfg and deps with defaults and refuses values out of range.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.MintRun == nil {
		return nil, errors.New("board: Deps needs MintRun")
	}
	if cfg.LeaseTerm == 0 {
		cfg.LeaseTerm = DefaultLeaseTerm
	}
	if cfg.CancelWait == 0 {
		cfg.CancelWait = DefaultCancelWait
	}
	if cfg.TokenBudget == 0 {
		cfg.TokenBudget = DefaultTokenBudget
	}
	if cfg.LeaseTerm < time.Second || cfg.LeaseTerm > 24*time.Hour {
		return nil, fmt.Errorf("board: the lease of a step is %s; it must be 1s to 24h", cfg.LeaseTerm)
	}
	if cfg.CancelWait < 0 || cfg.CancelWait > 5*time.Minute {
		return nil, fmt.Errorf("board: the wait for cancelled workers is %s; it must be at most 5m", cfg.CancelWait)
	}
	if cfg.TokenBudget < minBudget || cfg.TokenBudget > maxBudget {
		return nil, fmt.Errorf("board: the token budget of summaries is %d; it must be %d to %d", cfg.TokenBudget,
			minBudget, maxBudget)
	}
	if err := deps.Complete(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, deps: deps, metrics: newMetrics(deps.Metrics)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.endings = clock.NewDue(deps.Clock, s.endDue)
	s.leases = workers.NewLeases(deps.Clock, cfg.LeaseTerm, deps.Logger)
	s.workers = workers.New(workers.Config{
		Clock: deps.Clock, Leases: s.leases, MintToken: deps.MintRun,
		Stopping: s.ctx.Done(),
	})
	return s, nil
}

// Name returns the module's name.
func (s *Service) Name() string { return Plane }

// Register puts both services of the plane on a server.
func (s *Service) Register(srv grpc.ServiceRegistrar) {
	boardv1.RegisterBoardServiceServer(srv, s)
	boardv1.RegisterBoardWorkerServiceServer(srv, s)
}

// Start opens the journal, gives every running run a lease with a full term (SPEC
// X12), and continues to end the boards that were being ended.
func (s *Service) Start(ctx context.Context) error {
	var err error
	s.engine, err = plane.Open(ctx, plane.Config[*model.State]{
		Plane: Plane, Share: s.cfg.Share, New: func() *model.State { return model.NewState(s.cfg.LeaseTerm) },
		Events:   boardv1.File_quartet_board_v1_board_event_proto,
		OnCommit: s.committed, OnLoad: s.loaded, Follow: follows(), React: rules.React,
	}, s.deps.Deps)
	if err != nil {
		return err
	}
	s.workers.Start(s.engine)
	s.leases.Start(s.engine)
	s.endings.Start()
	if err := s.engine.Follow(ctx); err != nil {
		return errors.Join(err, s.Stop(ctx))
	}
	return nil
}

// Release ends the streams of workers and the waits of callers, so that a stop
// need not wait for them. Workers keep their runs and connect to the next process.
func (s *Service) Release() {
	s.watches.Stop()
	s.cancel()
}

// Stop releases workers and callers, waits for what runs in the background and
// closes the journal. It is idempotent.
func (s *Service) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.Release()
	s.leases.Stop()
	if s.engine == nil {
		return nil
	}
	s.endings.Stop()
	s.running.Wait()
	return s.engine.Close(ctx)
}

// Ready returns nil once the journal is open and while it can be written.
func (s *Service) Ready() error { return s.engine.Ready() }

// Stalled returns how long the journal has been unable to write; 0 while it can.
func (s *Service) Stalled() time.Duration { return s.engine.Stalled() }

// Quiesce waits until everything that was requested of this plane before is on
// disk. It is for tests.
func (s *Service) Quiesce(ctx context.Context) error {
	s.leases.Settle()
	return s.engine.Settle(ctx)
}

// Deadlines returns the deadlines of calls that wait and may take longer than a
// server's default deadline.
func Deadlines() map[string]time.Duration {
	return map[string]time.Duration{
		boardv1.BoardService_DispatchWorker_FullMethodName: MaxWait + 4*time.Second,
		boardv1.BoardService_GetWorkerRun_FullMethodName:   MaxWait + 4*time.Second,
		boardv1.BoardService_FailBoard_FullMethodName:      6 * time.Minute,
		boardv1.BoardService_CancelBoard_FullMethodName:    6 * time.Minute,
	}
}

// loaded is called after every load of a partition: at the start, and again after another
// writer had the partition or a write failed. It gives runs leases and schedules the ends of
// terminating boards.
func (s *Service) loaded(st *model.State) {
	s.leases.Load(st)
	for _, se := range st.Sessions {
		for _, b := range se.Order {
			if b.Terminating != nil {
				s.endings.Set(endingKey(b.Key), s.deps.Clock.Now().Add(s.cfg.CancelWait))
			}
		}
	}
}

// committed handles the durable events of a frame. It runs in the loop of a
// partition and never blocks.
func (s *Service) committed(_ int, events []*journal.Event) {
	ownerDeleted := false
	for _, ev := range events {
		if s.metrics != nil {
			s.metrics.count(ev)
		}
		switch ev.Payload.(type) {
		case *boardv1.OwnerDeleted:
			ownerDeleted = true
		case *boardv1.BoardTerminating:
			// Behind an OwnerDeleted in the same frame, it is possible that no caller waits
			// for the end. If one does, both try to write the end, and it is written once.
			if ownerDeleted {
				s.endInBackground(ev)
			}
		}
	}
	s.workers.Committed(events)
	if s.watches.Active() {
		for _, ev := range events {
			s.watches.Notify(boardWatch{ev.Namespace, ev.SessionID, ev.TaskID})
		}
	}
}

// background runs f in a goroutine for which Stop waits. Once Stop has begun it
// does nothing.
func (s *Service) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.running.Go(f)
	}
}

// Connect serves the stream of a worker until it ends.
func (s *Service) Connect(stream grpc.BidiStreamingServer[boardv1.ConnectRequest, boardv1.ConnectResponse]) error {
	return s.workers.Connect(stream)
}
