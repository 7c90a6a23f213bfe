package board

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
	"quartet/services/board/rules"
	"quartet/services/board/wal"
)

// Plane is the name of this plane in journals, subjects and cursors.
const Plane = "board"

// Defaults of what an operator sets.
const (
	DefaultLeaseTerm   = 300 * time.Second
	DefaultCancelWait  = 30 * time.Second
	DefaultTokenBudget = 1200
)

// Config is what an operator sets.
type Config struct {
	Share journal.Share // the partitions that it holds; zero: all of them
	// LeaseTerm is how long a worker may be silent about a step: S2's
	// task.step_lease_timeout_ms.
	LeaseTerm time.Duration
	// CancelWait is how long the end of a board waits for its workers to stop:
	// S2's agents.child_cancel_timeout_ms.
	CancelWait time.Duration
	// TokenBudget bounds summaries for prompts: S2's context.task_board_token_budget.
	TokenBudget int
}

// Deps is what this plane needs of its process and of other planes.
type Deps struct {
	plane.Deps
	// Orchestrates says whether an agent's profile has boards; nil: all have.
	Orchestrates func(ctx context.Context, agentID string) (bool, error)
	// MintRun makes the credential of a worker's run.
	MintRun func(namespace, workerID, runID string) string
}

// Service is the plane of boards.
type Service struct {
	boardv1.UnimplementedBoardServiceServer
	boardv1.UnimplementedBoardWorkerServiceServer

	cfg       Config
	deps      Deps
	engine    *plane.Engine[*model.State]
	due       *clock.Due
	stallSeen atomic.Int64 // stalls that deadlines hold already

	watches watches
	floor   floor
	chains  wal.Checkpoints
	metrics *metrics // nil: nothing is counted

	ctx    context.Context //nolint:containedctx // of what runs between requests; ends with Stop
	cancel context.CancelFunc

	mu       sync.Mutex // guards stopping, and that running grows only before it
	stopping bool
	running  sync.WaitGroup
}

const (
	dueLook = "look"
	dueEnd  = "end\x00"
)

// New completes the configuration. Nothing is opened before Start.
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
		return nil, fmt.Errorf("board: the token budget of summaries is %d; it must be %d to %d", cfg.TokenBudget, minBudget, maxBudget)
	}
	if err := deps.Complete(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, deps: deps, metrics: newMetrics(deps.Metrics)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Name is the module's name.
func (s *Service) Name() string { return Plane }

// Register puts both services of the plane on a server.
func (s *Service) Register(srv grpc.ServiceRegistrar) {
	boardv1.RegisterBoardServiceServer(srv, s)
	boardv1.RegisterBoardWorkerServiceServer(srv, s)
}

// Start opens the journal, gives every live lease one full term (SPEC X12) and
// goes on with the boards that were being ended.
func (s *Service) Start(ctx context.Context) error {
	s.due = clock.NewDue(s.deps.Clock, s.fire)
	var err error
	s.engine, err = plane.Open(ctx, plane.Config[*model.State]{
		Plane: Plane, Share: s.cfg.Share, New: func() *model.State { return model.NewState(s.cfg.LeaseTerm) },
		Events:   boardv1.File_quartet_board_v1_board_event_proto,
		OnCommit: s.committed, OnLoad: s.loaded, Follow: follows(), React: rules.React,
	}, s.deps.Deps)
	if err != nil {
		return err
	}
	s.due.Set(dueLook, s.deps.Clock.Now().Add(lookEvery))
	s.due.Start()
	if err := s.engine.Follow(ctx); err != nil {
		return errors.Join(err, s.Stop(ctx))
	}
	return nil
}

// Stop ends streams and waits, then closes the journal. It is idempotent.
func (s *Service) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.cancel()
	if s.engine == nil {
		return nil
	}
	s.due.Stop()
	s.running.Wait()
	return s.engine.Close(ctx)
}

// Release ends streams and waits of callers, so that a stop need not wait for
// them. Workers keep their steps and come back to the next process.
func (s *Service) Release() { s.cancel() }

// Ready is nil once the journal is open and while it can be written.
func (s *Service) Ready() error {
	if s.engine == nil {
		return errors.New("board: not started")
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

// Quiesce waits until what was asked of this plane before is on disk.
func (s *Service) Quiesce(ctx context.Context) error { return s.engine.Settle(ctx) }

// Deadlines gives the calls that may outlive a server's default deadline
// because they wait.
func Deadlines() map[string]time.Duration {
	return map[string]time.Duration{
		boardv1.BoardService_DispatchWorker_FullMethodName: MaxWait + 4*time.Second,
		boardv1.BoardService_GetWorkerRun_FullMethodName:   MaxWait + 4*time.Second,
		boardv1.BoardService_FailBoard_FullMethodName:      6 * time.Minute,
		boardv1.BoardService_CancelBoard_FullMethodName:    6 * time.Minute,
	}
}

// loaded follows every load of a partition: indexes start over.
func (s *Service) loaded(st *model.State) {
	s.regrant(st)
	for _, se := range st.Sessions {
		for _, b := range se.Order {
			if b.Terminating != nil {
				s.due.Set(endKey(b.Key), s.deps.Clock.Now().Add(s.cfg.CancelWait))
			}
		}
	}
}

// committed hears durable events. It runs in the journal's loop.
func (s *Service) committed(_ int, events []*journal.Event) {
	poke := false
	for _, ev := range events {
		if s.metrics != nil {
			s.metrics.count(ev)
		}
		switch p := ev.Payload.(type) {
		case *boardv1.TaskStepReady, *boardv1.StandingDispatchOpened, *boardv1.TaskReopened:
			poke = true
		case *boardv1.BoardTerminating:
			if p.GetReason() == rules.ReasonOwnerDeleted {
				s.orphaned(ev)
			}
		case *boardv1.WorkerRunEnded:
			s.floor.release(ev.Namespace, p.GetRunId())
			poke = true
		}
	}
	if poke {
		s.floor.poke()
	}
	if s.watches.any() {
		for _, ev := range events {
			s.watches.signal(watchKey{ev.Namespace, ev.SessionID, ev.TaskID})
		}
	}
}

// fire is what falls due.
func (s *Service) fire(keys []string) {
	for _, k := range keys {
		if k == dueLook {
			s.look(nil)
		} else {
			s.endDue(k)
		}
	}
}

// background runs f, for which Stop waits; not at all once Stop began.
func (s *Service) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.running.Go(f)
	}
}

// command is one change of one board.
type command struct {
	method    string
	k         model.Key
	board     string
	requestID string
	args      proto.Message
	actor     *journal.Actor
	// decide gets the board, which is usable and, unless ended is set, not ended.
	decide func(st *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error)
	ended  bool
}

// written is what a change wrote.
type written struct {
	ids    []string
	n      int32
	events []*journal.Event
}

// change runs a change; leases that are over are taken back first.
func (s *Service) change(ctx context.Context, c command) (written, error) {
	for {
		out, err := plane.Do(ctx, s.engine, plane.Command[*model.State, written]{
			Method: c.method, AgentID: c.k.ID, RequestID: c.requestID, Args: c.args, Actor: c.actor,
			Decide: func(st *model.State, env journal.Env) (d journal.Decision[written], err error) {
				b, err := st.FindBoard(c.k, c.board, "")
				if err == nil {
					err = b.CheckUsable()
				}
				if err == nil && !c.ended {
					err = b.CheckOpen()
				}
				if err != nil {
					return d, err
				}
				if s.late(b, env.Now) {
					return d, errOverdue
				}
				d.Events, err = c.decide(st, b, env)
				return d, err
			},
			Answer: func(events []*journal.Event) (written, error) {
				ids, n := walEvents(events)
				return written{ids, n, events}, nil
			},
		})
		if !errors.Is(err, errOverdue) {
			return out, err
		}
		if err := s.reconcile(ctx, c.k, c.board); err != nil {
			return out, err
		}
	}
}

// view reads a board; leases that are over are taken back first.
func view[R any](ctx context.Context, s *Service, k model.Key, boardID, wal string, read func(st *model.State, b *model.Board) (R, error)) (R, error) {
	for {
		out, _, err := journal.View(ctx, s.engine.For(k.Namespace, k.ID), func(st *model.State) (out R, err error) {
			b, err := st.FindBoard(k, boardID, wal)
			if err == nil {
				err = b.CheckUsable()
			}
			if err != nil {
				return out, err
			}
			if s.late(b, s.deps.Clock.Now()) {
				return out, errOverdue
			}
			return read(st, b)
		})
		if !errors.Is(err, errOverdue) {
			return out, err
		}
		if err := s.reconcile(ctx, k, boardID); err != nil {
			return out, err
		}
	}
}

// journalView reads a session's partition as it is.
func journalView[R any](ctx context.Context, s *Service, k model.Key, read func(st *model.State) (R, error)) (R, error) {
	out, _, err := journal.View(ctx, s.engine.For(k.Namespace, k.ID), read)
	return out, err
}

func sessionKey(ctx context.Context, sessionID string) model.Key {
	return model.Key{Namespace: rpc.ActorFrom(ctx).Namespace, ID: sessionID}
}
