package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"google.golang.org/grpc"
)

// Workload is drivers, a runner and a watcher over one connection. Half of the drivers send request ids.
type Workload struct {
	conn    grpc.ClientConnInterface
	drivers []*Driver
	watcher *Watcher
	quit    chan struct{}
	driving sync.WaitGroup
	aside   sync.WaitGroup
	end     context.CancelFunc

	mu  sync.Mutex
	err error
}

// StartWorkload makes n agents and begins.
func StartWorkload(ctx context.Context, conn grpc.ClientConnInterface, rng *rand.Rand, n int) (*Workload, error) {
	w := &Workload{conn: conn, watcher: NewWatcher(conn), quit: make(chan struct{})}
	for i := range n {
		d := NewDriver(conn, fmt.Sprint("agent-", i), i%2 == 0, rng.Uint64())
		if err := d.Spawn(ctx); err != nil {
			return nil, err
		}
		w.drivers = append(w.drivers, d)
	}
	aside, end := context.WithCancel(ctx)
	w.end = end
	w.aside.Go(func() { w.failed(w.watcher.Run(aside)) })
	w.aside.Go(func() { w.failed(NewRunner(conn, "runner").Run(aside)) })
	for _, d := range w.drivers {
		w.driving.Go(func() { w.failed(d.Run(ctx, w.quit)) })
	}
	return w, nil
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
	for _, d := range w.drivers {
		n += d.Answered()
	}
	return n
}

// Events returns how many events the watcher received, after Stop.
func (w *Workload) Events() int { return len(w.watcher.Seen) }

// Stop waits for the answers to what is under way, and compares the books with what the server says: each item, and
// each event.
func (w *Workload) Stop(ctx context.Context) error {
	close(w.quit)
	w.driving.Wait()
	w.end()
	w.aside.Wait()
	if err := w.Err(); err != nil {
		return err
	}
	for _, d := range w.drivers {
		if err := d.Check(ctx, 1<<30); err != nil {
			return fmt.Errorf("agent %s: %w", d.AgentID, err)
		}
	}
	return Audit(ctx, w.conn, w.watcher, w.drivers)
}
