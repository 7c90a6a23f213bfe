package workers

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/clock"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/leasetable"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/watch"
	"quartet/pkg/workerstream"
	"quartet/services/task/model"
	"quartet/services/task/output"
)

// Config is what a Hub needs.
type Config struct {
	Clock     clock.Clock
	IDs       id.Source
	Logger    *zap.Logger
	Output    output.Store
	LeaseTerm time.Duration
	// Watches is notified, by task id, when output is stored or a command ended.
	Watches *watch.Hub[string]
}

// Hub holds the workers of the task plane.
type Hub struct {
	cfg      Config
	engine   *plane.Engine[*model.State] // set by Start
	leases   *leasetable.Table[string, *command]
	registry *workerstream.Registry[taskv1.ConnectResponse]
	orders   pendingOrders
	queued   chan struct{} // capacity 1: there may be commands to give to workers

	ctx    context.Context //nolint:containedctx // of what runs between requests; ends with Release
	cancel context.CancelFunc

	mu       sync.Mutex // guards stopping; running grows only under mu, while stopping is false
	stopping bool
	running  sync.WaitGroup
}

// New returns a Hub. Nothing runs before Start.
func New(cfg Config) *Hub {
	h := &Hub{cfg: cfg, queued: make(chan struct{}, 1), registry: workerstream.NewRegistry[taskv1.ConnectResponse](
		true)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.leases = leasetable.New(leasetable.Config[string, *command]{
		Clock: cfg.Clock, Term: cfg.LeaseTerm,
		Expired: h.expired,
	})
	return h
}

// Start gives every running command a lease with a full term (SPEC X12), and
// begins to give queued commands to workers.
func (h *Hub) Start(ctx context.Context, engine *plane.Engine[*model.State]) error {
	h.engine = engine
	for _, p := range engine.All() {
		if p.Damage() != nil {
			continue
		}
		held, _, err := journal.View(ctx, p, func(st *model.State) ([]model.HeldTask, error) {
			return st.HeldTasks(nil),
				nil
		})
		if err != nil {
			return err
		}
		for _, t := range held {
			h.ensureLease(t.Namespace, t.Worker, t.Task)
		}
	}
	h.leases.Start(func(c *command) (time.Duration, bool) { return engine.Stall(c.namespace, c.agentID) })
	h.background(h.dispatchLoop)
	return nil
}

// Release ends the streams, so that Stop need not wait for workers. They keep
// their commands and connect to the next process.
func (h *Hub) Release() { h.cancel() }

// Stop ends everything that the Hub runs and waits for it. It is idempotent.
func (h *Hub) Stop() {
	h.mu.Lock()
	h.stopping = true
	h.mu.Unlock()
	h.cancel()
	h.leases.Stop()
	h.running.Wait()
}

// Settle waits until every lease that is due has been found. The ends of their
// commands may still be in progress. It is for tests.
func (h *Hub) Settle() { h.leases.Settle() }

// background runs f in a goroutine for which Stop waits. Once Stop has begun it
// does nothing.
func (h *Hub) background(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stopping {
		h.running.Go(f)
	}
}

// Notify says that there may be commands to give to workers. It never blocks.
func (h *Hub) Notify() {
	select {
	case h.queued <- struct{}{}:
	default:
	}
}

// Slots returns the connected workers that take commands; HeldElsewhere is not set.
func (h *Hub) Slots() []model.WorkerSlot {
	var out []model.WorkerSlot
	for _, s := range h.registry.Open() {
		if s.Hello.Capacity > 0 {
			out = append(out, model.WorkerSlot{
				Worker: s.Key, BootID: s.Hello.BootID, Capacity: s.Hello.Capacity, Pools: s.Hello.Pools,
				Labels: s.Hello.Labels,
			})
		}
	}
	return out
}
