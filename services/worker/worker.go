package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/proctree"
	"quartet/pkg/sandboxes"
	"quartet/pkg/tracing"
)

// Config is the configuration of a worker. ID, Roots and Dial are required.
type Config struct {
	// ID is the worker's lasting name. Two processes must not share one.
	ID string
	// Roots are the directories under which commands may run; the first one is
	// where they run by default.
	Roots []string
	// Isolate says which agents share the roots; empty: all do.
	Isolate Isolation
	// Capacity is how many commands run at once; default 4. The task plane observes it, the
	// worker does not refuse a lease beyond it.
	Capacity int
	// Dial returns a connection to the task plane. The worker calls it for every
	// attempt to connect, and never closes the connection.
	Dial func() (grpc.ClientConnInterface, error)
	// StateDir distinguishes workers of one host that have the same ID, as those of two
	// installations may: a worker ends only the processes that earlier processes of the
	// worker with the same StateDir left. It is created if it does not exist, and a lock
	// file is held in it. Default: the system's temporary directory.
	StateDir string
	// Labels are sent to the task plane; a command may require labels of its worker (SPEC T4).
	Labels map[string]string
	// Pools are the pools that the worker serves. Empty: the pool "default".
	Pools []string
	// MaxMemory and MaxProcesses bound every command, whatever limits the command has
	// (SPEC T7). 0: no bound.
	MaxMemory    int64 // bytes
	MaxProcesses int
	// Guard is the program that ends the commands' processes if this process is
	// killed; see proctree.Config.
	Guard []string
	// Confinement confines commands and git. nil: they may do whatever this process may.
	Confinement *sandboxes.Config
	Logger      *zap.Logger
	// Tracer records commands as spans of the traces that they are part of. Optional.
	Tracer *tracing.Tracer

	Heartbeat time.Duration // default 10 s, a third of a lease
	Grace     time.Duration // between TERM and KILL; default 5 s (SPEC T3)
	Drain     time.Duration // how long to read a pipe that a grandchild holds after the exit; default 200 ms
}

// maxForgotten bounds how many ended commands are remembered, so that a repeated
// lease does not run one again. The plane does not repeat leases of ended commands;
// this is a second safeguard.
const maxForgotten = 10_000

// reportTimeout bounds how long Stop waits for acknowledgements after the grace.
const reportTimeout = 10 * time.Second

// Defaults of Config.
const (
	DefaultCapacity  = 4
	DefaultHeartbeat = 10 * time.Second
	DefaultGrace     = 5 * time.Second
	DefaultDrain     = 200 * time.Millisecond
)

// Worker is one process of a worker.
type Worker struct {
	cfg   Config
	boot  string
	roots workspace // what all agents share without isolation
	host  *proctree.Host
	lock  *os.File // held from Start to Stop

	ctx    context.Context //nolint:containedctx // of the connection; Stop cancels it after the commands have ended
	cancel context.CancelFunc
	done   chan struct{} // closed when connect has returned
	// ordersCtx is the context of orders about worktrees. It ends as soon as the worker
	// begins to stop.
	ordersCtx    context.Context //nolint:containedctx // of work that outlives calls
	cancelOrders context.CancelFunc
	orders       orders
	sandboxes    *sandboxes.Pool

	monitor monitor

	mu        sync.Mutex
	commands  map[string]*command // by task id; those whose ends are not acknowledged too
	leases    map[string]int64    // newest lease generation by task; a repeated lease starts nothing
	forgotten []string            // keys of leases (task ids) whose commands were forgotten, oldest first
	session   *session            // the open stream, or nil
	stopping  bool
	started   bool
	running   sync.WaitGroup // commands and orders, which are added under mu and not once stopping; and the monitor
	lastErr   error          // why the last session ended
	idle      chan struct{}  // closed and replaced whenever a command is forgotten
}

// New checks the configuration. Nothing runs before Start.
func New(cfg Config) (*Worker, error) {
	if err := fault.Name("worker id", cfg.ID); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	if len(cfg.Roots) == 0 || cfg.Dial == nil {
		return nil, errors.New("worker: Config needs Roots and Dial")
	}
	var err error
	if cfg.Isolate, err = ParseIsolation(string(cfg.Isolate)); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	if cfg.Isolate != IsolateNone && len(cfg.Roots) > 1 {
		return nil, fmt.Errorf("worker: isolation %q divides one root, and there are %d; let commands read the other "+
			"directories instead", cfg.Isolate, len(cfg.Roots))
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.StateDir == "" {
		cfg.StateDir = os.TempDir()
	}
	if cfg.Capacity <= 0 {
		cfg.Capacity = DefaultCapacity
	}
	cfg.Heartbeat = orDefault(cfg.Heartbeat, DefaultHeartbeat)
	cfg.Grace = orDefault(cfg.Grace, DefaultGrace)
	cfg.Drain = orDefault(cfg.Drain, DefaultDrain)
	return &Worker{
		cfg:      cfg,
		boot:     id.New().New("boot_"),
		commands: make(map[string]*command),
		leases:   make(map[string]int64),
		idle:     make(chan struct{}),
	}, nil
}

// orDefault returns v, or d if v is not positive.
func orDefault(v, d time.Duration) time.Duration {
	if v <= 0 {
		return d
	}
	return v
}

// Name returns the module's name.
func (w *Worker) Name() string { return "worker" }

// BootID returns the id of this process of the worker.
func (w *Worker) BootID() string { return w.boot }

// Start resolves the roots, ends what an earlier process of the worker left
// running, and begins to connect. It does not wait for the connection.
func (w *Worker) Start(ctx context.Context) error {
	for _, root := range w.cfg.Roots {
		abs, err := filepath.Abs(root)
		if err == nil {
			abs, err = filepath.EvalSymlinks(abs)
		}
		if err != nil {
			return fmt.Errorf("worker: root %s: %w", root, err)
		}
		w.roots = append(w.roots, abs)
	}
	if err := w.takeOver(ctx); err != nil {
		return err
	}
	w.sandboxes = sandboxes.NewPool(w.cfg.Confinement, filepath.Join(w.cfg.StateDir, "sandboxes-"+w.cfg.ID),
		w.host.StartHelper)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.ordersCtx, w.cancelOrders = context.WithCancel(w.ctx)
	w.done = make(chan struct{})
	w.mu.Lock()
	w.started = true
	w.mu.Unlock()
	go func() {
		defer close(w.done)
		w.connect()
	}()
	return nil
}

// takeOver takes the lock that makes this the only process of the worker, and ends
// what an earlier process left running.
func (w *Worker) takeOver(ctx context.Context) error {
	var err error
	if w.cfg.StateDir, err = filepath.Abs(w.cfg.StateDir); err != nil {
		return fmt.Errorf("worker: state directory: %w", err)
	}
	if err := os.MkdirAll(w.cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("worker: state directory: %w", err)
	}
	path := filepath.Join(w.cfg.StateDir, "quartet-worker-"+w.cfg.ID+".lock")
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("worker: lock: %w", err)
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("worker: another process runs worker %s with the state directory %s; give one of them "+
			"another id or directory", w.cfg.ID, w.cfg.StateDir)
	}
	if err == nil {
		if !proctree.Supported().Memory {
			w.cfg.Logger.Warn("this system does not measure the memory of commands: their memory limits are not "+
				"enforced",
				zap.String("may_escape", proctree.Supported().Escapes))
		}
		w.host, err = proctree.Open(ctx, proctree.Config{
			Owner: w.owner(), Boot: w.boot, Guard: w.cfg.Guard,
			Logger: w.cfg.Logger,
		})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("worker: take over from an earlier process: %w", err), lock.Close())
	}
	w.lock = lock
	return nil
}

// owner returns the mark of the commands of all processes of this worker.
func (w *Worker) owner() string { return w.cfg.ID + "@" + w.cfg.StateDir }

// Stop ends the running commands, reports their ends, and waits until the task plane has acknowledged
// them, for at most the grace period and reportTimeout, or until ctx ends. If some are not acknowledged by
// then, it kills the commands that still run and returns an error. It is idempotent.
func (w *Worker) Stop(ctx context.Context) error {
	w.mu.Lock()
	if !w.started {
		w.mu.Unlock()
		return nil
	}
	w.stopping = true
	running := make([]*command, 0, len(w.commands))
	for _, c := range w.commands {
		running = append(running, c)
	}
	w.mu.Unlock()
	w.cancelOrders()
	for _, c := range running {
		c.stop(causeWorkerStopped, false)
	}
	report, cancel := context.WithTimeout(ctx, w.cfg.Grace+reportTimeout)
	err := w.awaitIdle(report)
	cancel()
	for _, c := range running { // commands whose ends could not be reported must not run on either
		c.buf.Discard()
		c.kill()
	}
	w.running.Wait()
	w.cancel()
	<-w.done
	w.sandboxes.Close()
	return errors.Join(err, w.host.Close(context.WithoutCancel(ctx)), w.unlock())
}

// unlock releases the lock, so that another process can be this worker. It is
// idempotent.
func (w *Worker) unlock() error {
	w.mu.Lock()
	lock := w.lock
	w.lock = nil
	w.mu.Unlock()
	if lock == nil {
		return nil
	}
	return lock.Close()
}

// awaitIdle waits until every command has ended and its end is acknowledged.
func (w *Worker) awaitIdle(ctx context.Context) error {
	for {
		w.mu.Lock()
		n, idle := len(w.commands), w.idle
		w.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("worker: %d commands were ended but their end is not acknowledged: %w", n, ctx.Err())
		}
	}
}

// Ready returns nil while the worker is connected, otherwise an error that says why it is not.
func (w *Worker) Ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.session != nil:
		return nil
	case w.lastErr != nil:
		return fmt.Errorf("worker: not connected: %w", w.lastErr)
	}
	return errors.New("worker: not connected yet")
}

// forget drops a command whose end is acknowledged or must not be reported.
func (w *Worker) forget(c *command) {
	taskID := c.task.GetTaskId()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.commands[taskID] != c {
		return
	}
	delete(w.commands, taskID)
	if w.forgotten = append(w.forgotten, taskID); len(w.forgotten) > maxForgotten {
		delete(w.leases, w.forgotten[0])
		w.forgotten = w.forgotten[1:]
	}
	close(w.idle)
	w.idle = make(chan struct{})
}

// command returns the command that the worker holds for a task, nil if there is none.
func (w *Worker) command(taskID string) *command {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.commands[taskID]
}

// holding returns the tasks whose commands run or whose ends are not acknowledged.
func (w *Worker) holding() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, len(w.commands))
	for id := range w.commands {
		ids = append(ids, id)
	}
	return ids
}

// accept starts a leased command. It ignores a lease of a generation that it has seen or an older one,
// and any lease while the worker stops. It abandons a command of the same task under an earlier lease.
func (w *Worker) accept(l *taskv1.CommandLease) {
	taskID := l.GetTask().GetTaskId()
	w.mu.Lock()
	if w.leases[taskID] >= l.GetLeaseGeneration() || w.stopping {
		// A worker that is stopping leaves the lease to expire or to its next process.
		w.mu.Unlock()
		return
	}
	w.leases[taskID] = l.GetLeaseGeneration()
	prev := w.commands[taskID] // under a lost lease; the new command begins when it has ended
	c := newCommand(w, l, prev)
	w.commands[taskID] = c
	w.running.Go(c.run)
	w.mu.Unlock()
	if prev != nil {
		prev.abandon()
	}
}

// markDirty tells the session, if there is one, that a command has something to
// report.
func (w *Worker) markDirty(c *command) {
	w.mu.Lock()
	session := w.session
	w.mu.Unlock()
	if session != nil {
		session.mark(c)
	}
}
