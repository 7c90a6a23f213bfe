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
	"quartet/pkg/tracing"
)

// Config of a worker. ID, Roots and Dial are required.
type Config struct {
	// ID is the worker's lasting name. Two processes must not share one.
	ID string
	// Roots are the directories under which commands may run; the first one is
	// where they run by default.
	Roots []string
	// Capacity is how many commands run at once; default 4.
	Capacity int
	// Dial gives a connection to the task plane. It is called for every
	// attempt, and the connection is not closed.
	Dial func() (grpc.ClientConnInterface, error)
	// StateDir tells workers of one host apart that have the same ID, as two
	// installations may: a worker ends only what earlier lives with its own
	// StateDir left. It is made if it is missing,
	// and a lock is held in it. Default the system's temporary
	// directory.
	StateDir string
	// Labels are announced; commands may ask for them (SPEC T4).
	Labels map[string]string
	// Pools are those whose commands it takes; none: default.
	Pools []string
	// MaxMemory and MaxProcesses bound every command, also one that asks for more or
	// for no limit (SPEC T7). 0: none.
	MaxMemory    int64 // bytes
	MaxProcesses int
	// Guard is the program that ends what runs should this process be killed; see
	// proctree.Config.
	Guard  []string
	Logger *zap.Logger
	// Tracer has commands told of as spans of the traces that they are part of.
	// Optional.
	Tracer *tracing.Tracer

	Heartbeat time.Duration // default 10 s, a third of a lease
	Grace     time.Duration // between TERM and KILL; default 5 s (SPEC T3)
	Drain     time.Duration // after the exit, for a pipe that a grandchild holds; default 200 ms
}

// maxFormer bounds how many commands are remembered after their end is stored.
// Nobody leases those again; it is a second fence, not the first.
const maxFormer = 10_000

// reportTime bounds how long Stop waits for acknowledgements after the grace.
const reportTime = 10 * time.Second

// Defaults of Config.
const (
	DefaultCapacity  = 4
	DefaultHeartbeat = 10 * time.Second
	DefaultGrace     = 5 * time.Second
	DefaultDrain     = 200 * time.Millisecond
)

// Worker is one process life of a worker.
type Worker struct {
	cfg   Config
	boot  string
	roots []string // real paths
	host  *proctree.Host
	lock  *os.File // held from Start to Stop

	ctx    context.Context //nolint:containedctx // of the connection; ends with Stop
	cancel context.CancelFunc
	done   chan struct{} // the connection loop ended
	// errands is what orders about worktrees run under; it ends as soon as the
	// worker begins to stop.
	errands context.Context //nolint:containedctx // as above
	drop    context.CancelFunc
	orders  orders

	watchers watchers

	mu       sync.Mutex
	commands map[string]*command
	seen     map[string]int64 // newest leases of this life: one that is repeated starts nothing
	former   []string         // of those in seen, the ones that were forgotten, oldest first
	link     *link            // the open stream, or nil
	stopping bool
	started  bool
	running  sync.WaitGroup // grows under mu, not once stopping
	lastErr  error
	idle     chan struct{} // closed and replaced whenever a command is forgotten
}

// New checks the configuration. Nothing runs before Start.
func New(cfg Config) (*Worker, error) {
	if err := fault.Name("worker id", cfg.ID); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	if len(cfg.Roots) == 0 || cfg.Dial == nil {
		return nil, errors.New("worker: Config needs Roots and Dial")
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
		seen:     make(map[string]int64),
		idle:     make(chan struct{}),
	}, nil
}

func orDefault(v, d time.Duration) time.Duration {
	if v <= 0 {
		return d
	}
	return v
}

// Name is the module's name.
func (w *Worker) Name() string { return "worker" }

// BootID names this process life.
func (w *Worker) BootID() string { return w.boot }

// Start resolves the roots, ends what an earlier life left running, and begins
// to connect. It does not wait for the connection.
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
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.errands, w.drop = context.WithCancel(w.ctx)
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

// takeOver makes sure that this is the only living process of the worker, and
// ends what an earlier one left running.
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
		err = fmt.Errorf("worker: another process runs worker %s with the state directory %s; give one of them another id or directory", w.cfg.ID, w.cfg.StateDir)
	}
	if err == nil {
		if !proctree.Supported().Memory {
			w.cfg.Logger.Warn("this system does not measure the memory of commands: their memory limits are not enforced",
				zap.String("may_escape", proctree.Supported().Escapes))
		}
		w.host, err = proctree.Open(ctx, proctree.Config{Owner: w.owner(), Boot: w.boot, Guard: w.cfg.Guard, Logger: w.cfg.Logger})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("worker: take over from an earlier life: %w", err), lock.Close())
	}
	w.lock = lock
	return nil
}

// owner is what marks the processes of all lives of this worker.
func (w *Worker) owner() string { return w.cfg.ID + "@" + w.cfg.StateDir }

// Stop ends the running commands, reports them as interrupted, and waits until
// that is stored or ctx ends. It is idempotent.
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
	w.drop()
	for _, c := range running {
		c.stop(causeWorkerStopped, false)
	}
	report, cancel := context.WithTimeout(ctx, w.cfg.Grace+reportTime)
	err := w.awaitIdle(report)
	cancel()
	for _, c := range running { // what could not be reported must not live on either
		c.buf.Discard()
		c.kill()
	}
	w.running.Wait()
	w.cancel()
	<-w.done
	return errors.Join(err, w.host.Close(context.WithoutCancel(ctx)), w.unlock())
}

// unlock lets another process be this worker. It is idempotent.
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

// awaitIdle returns when no command is left, ended or not.
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

// Ready is nil while the worker is connected.
func (w *Worker) Ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.link != nil:
		return nil
	case w.lastErr != nil:
		return fmt.Errorf("worker: not connected: %w", w.lastErr)
	}
	return errors.New("worker: not connected yet")
}

// forget drops a command whose end is stored or of no interest.
func (w *Worker) forget(c *command) {
	taskID := c.task.GetTaskId()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.commands[taskID] != c {
		return
	}
	delete(w.commands, taskID)
	if w.former = append(w.former, taskID); len(w.former) > maxFormer {
		delete(w.seen, w.former[0])
		w.former = w.former[1:]
	}
	close(w.idle)
	w.idle = make(chan struct{})
}

func (w *Worker) command(taskID string) *command {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.commands[taskID]
}

// holding lists the commands that run or whose end is not acknowledged.
func (w *Worker) holding() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, len(w.commands))
	for id := range w.commands {
		ids = append(ids, id)
	}
	return ids
}

// accept starts a command that was leased. A lease seen before starts nothing.
func (w *Worker) accept(l *taskv1.CommandLease) {
	taskID := l.GetTask().GetTaskId()
	w.mu.Lock()
	if w.seen[taskID] >= l.GetLeaseGeneration() || w.stopping {
		// While stopping the lease is left to lapse or, sooner, to the next life.
		w.mu.Unlock()
		return
	}
	w.seen[taskID] = l.GetLeaseGeneration()
	prev := w.commands[taskID] // under a lease that was lost; this one begins when that is gone
	c := newCommand(w, l, prev)
	w.commands[taskID] = c
	w.running.Go(c.run)
	w.mu.Unlock()
	if prev != nil {
		prev.abandon()
	}
}

// markDirty tells the stream, if there is one, that a command has news.
func (w *Worker) markDirty(c *command) {
	w.mu.Lock()
	link := w.link
	w.mu.Unlock()
	if link != nil {
		link.mark(c)
	}
}
