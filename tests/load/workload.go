package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// Workload is drivers, a runner and a watcher over one connection.
type Workload struct {
	Drivers []*Driver
	Watcher *Watcher
	Runner  *Runner

	ctx   context.Context //nolint:containedctx // of all calls
	conn  grpc.ClientConnInterface
	aside sync.WaitGroup
	end   context.CancelFunc

	mu  sync.Mutex
	err error
}

// NewWorkload makes n agents with a driver each, of which ownIDs says whether it sends request ids, and begins to watch
// events and to take turns. The calls end with ctx.
func NewWorkload(ctx context.Context, conn grpc.ClientConnInterface, rng *rand.Rand, n int, ownIDs func(i int) bool) (
	*Workload, error,
) {
	w := &Workload{ctx: ctx, conn: conn, Watcher: NewWatcher(conn), Runner: NewRunner(conn, "runner")}
	for i := range n {
		d := NewDriver(conn, fmt.Sprint("agent-", i), ownIDs(i), rng.Uint64())
		if err := d.Spawn(ctx); err != nil {
			return nil, err
		}
		w.Drivers = append(w.Drivers, d)
	}
	aside, end := context.WithCancel(ctx)
	w.end = end
	w.aside.Go(func() { w.failed(w.Watcher.Run(aside)) })
	w.aside.Go(func() { w.failed(w.Runner.Run(aside)) })
	return w, nil
}

// Pace makes the drivers wait after each mutation. It must be called before Start.
func (w *Workload) Pace(pause time.Duration) {
	for _, d := range w.Drivers {
		d.Pause = pause
	}
}

// Start runs the drivers; the returned function stops them and waits until each mutation in flight was answered.
func (w *Workload) Start() (stop func()) {
	quit := make(chan struct{})
	var all sync.WaitGroup
	for _, d := range w.Drivers {
		all.Go(func() { w.failed(d.Run(w.ctx, quit)) })
	}
	return func() {
		close(quit)
		all.Wait()
	}
}

func (w *Workload) failed(err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = errors.Join(w.err, err)
}

// Err returns what went wrong so far.
func (w *Workload) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Answered returns how many mutations were answered.
func (w *Workload) Answered() (n int) {
	for _, d := range w.Drivers {
		n += d.Answered()
	}
	return n
}

// Unknown returns how many mutations have an unknown outcome.
func (w *Workload) Unknown() (n int) {
	for _, d := range w.Drivers {
		n += d.Unknown
	}
	return n
}

// Check compares the books with what the server says, once the drivers have stopped: the newest items of each agent, at
// most n, and as many of its requests, repeated.
func (w *Workload) Check(ctx context.Context, n int) error {
	for _, d := range w.Drivers {
		if err := errors.Join(d.Repeat(ctx, n), d.Check(ctx, n)); err != nil {
			return fmt.Errorf("agent %s: %w", d.AgentID, err)
		}
	}
	return w.Err()
}

// Finish ends the runner and the watcher. It is idempotent.
func (w *Workload) Finish() {
	w.end()
	w.aside.Wait()
}

// Audit compares the books with what the server says, once the drivers have stopped: each item, and each event.
func (w *Workload) Audit(ctx context.Context) error {
	w.Finish()
	if err := w.Check(ctx, 1<<30); err != nil {
		return err
	}
	return Audit(ctx, w.conn, w.Watcher, w.Drivers)
}
