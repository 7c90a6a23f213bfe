// Package workers is the board plane's side of its workers: it holds their
// streams, writes what they report, and gives them steps.
//
// A stream is the fast way for many runs: whatever arrived on it while its last
// write was on the way to disk becomes one write, by the rule Batch. The package
// imports model, rules and leases, and is imported by the service.
package workers

import (
	"slices"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/workerstream"
	"quartet/services/board/model"
)

// Config is what a Hub needs.
type Config struct {
	Clock  clock.Clock
	Leases *Leases
	// MintToken makes the credential of a worker's run.
	MintToken func(namespace, workerID, runID string) string
	// Stopping is closed when all streams must end.
	Stopping <-chan struct{}
}

// Reservation is room for a run on a connected worker.
type Reservation = workerstream.Reservation[boardv1.ConnectResponse]

// Hub holds the workers of the board plane.
type Hub struct {
	cfg      Config
	engine   *plane.Engine[*model.State] // set by Start
	registry *workerstream.Registry[boardv1.ConnectResponse]

	mu       sync.Mutex
	sessions map[*workerstream.Session[boardv1.ConnectResponse]]*session
}

// New returns a Hub without workers.
func New(cfg Config) *Hub {
	return &Hub{
		cfg: cfg, registry: workerstream.NewRegistry[boardv1.ConnectResponse](false),
		sessions: make(map[*workerstream.Session[boardv1.ConnectResponse]]*session),
	}
}

// Start sets the engine. It must be called before a worker connects.
func (h *Hub) Start(engine *plane.Engine[*model.State]) { h.engine = engine }

// Committed handles durable events: it updates the leases, takes the room of runs that claimed a step under
// a standing dispatch, frees the room of runs that ended, tells their workers to stop those that they did not
// end themselves, and wakes workers when there may be steps to claim. It never blocks.
func (h *Hub) Committed(events []*journal.Event) {
	claimable := false
	for _, ev := range events {
		for _, runID := range h.cfg.Leases.Committed(ev) {
			h.stop(ev.Namespace, runID)
		}
		switch p := ev.Payload.(type) {
		case *boardv1.TaskStepReady, *boardv1.StandingDispatchOpened, *boardv1.TaskReopened:
			claimable = true
		case *boardv1.WorkerRunEnded:
			if p.GetStatus() != boardv1.RunStatus_RUN_STATUS_FINISHED {
				h.Cancel(ev.Namespace, p.GetRunId())
			}
			h.registry.Release(ev.Namespace, p.GetRunId())
			claimable = true // the dispatch may start another run
		case *boardv1.TaskStepLeaseExpired: // ends the run of a standing dispatch without an event of its own
			h.stop(ev.Namespace, p.GetClaimedByRunId())
			claimable = true
		case *boardv1.TaskStepClaimed:
			// Here, and not when the batch that claimed is answered: the run may have ended by then.
			if s := h.registry.Find(model.Key{Namespace: ev.Namespace, ID: p.GetClaimedByAgentId()}); s != nil &&
				p.GetDispatchId() != "" {
				h.registry.Assign(s, p.GetClaimedByRunId())
			}
		case *boardv1.ChildAgentCancelTimeout: // the end of the board, which follows, ends these runs
			h.registry.Release(ev.Namespace, p.GetRunIds()...)
		}
	}
	if claimable {
		h.notify()
	}
}

// notify wakes the sessions whose workers want steps.
func (h *Hub) notify() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sessions {
		if s.want.Load() > 0 {
			s.wake()
		}
	}
}

// Reserve sets room for a run aside in a pool, on the named worker if workerID is not empty. It
// returns NOT_FOUND if that worker is not connected or not in the pool, WORKER_BUSY if it has no
// room, and WORKER_POOL_BUSY if no connected worker of the pool has room, or none is connected.
func (h *Hub) Reserve(namespace, pool, workerID string) (*Reservation, error) {
	return h.registry.Reserve(namespace, pool, workerID)
}

// Begin gives a durable run to the worker on which room was reserved for it, and
// ends the reservation. If the worker has disconnected it gets the run when it
// connects again.
func (h *Hub) Begin(v *Reservation, run *boardv1.WorkerRun) {
	if !v.Assign(run.GetRunId()) {
		return
	}
	h.mu.Lock()
	s := h.sessions[v.Session]
	h.mu.Unlock()
	if s != nil {
		s.begin(run)
	}
}

// Cancel asks the worker of a run to stop it, if it is connected.
func (h *Hub) Cancel(namespace, runID string) {
	if s := h.registry.Holder(namespace, runID); s != nil {
		s.Send(&boardv1.ConnectResponse{CancelRunIds: []string{runID}})
	}
}

// stop asks the worker of a run that has ended to stop it, and frees the room of the run.
func (h *Hub) stop(namespace, runID string) {
	h.Cancel(namespace, runID)
	h.registry.Release(namespace, runID)
}

// List returns the connected workers of a namespace that serve a pool, or of all
// pools if it is empty, sorted by id.
func (h *Hub) List(namespace, pool string) []*boardv1.BoardWorker {
	var out []*boardv1.BoardWorker
	for _, s := range h.registry.Open() {
		if s.Key.Namespace != namespace || pool != "" && !slices.Contains(s.Hello.Pools, pool) {
			continue
		}
		out = append(out, &boardv1.BoardWorker{
			WorkerId: s.Key.ID, WorkerPoolIds: s.Hello.Pools, Capacity: int32(s.Hello.Capacity & (1<<31 - 1)),
			RunIds: h.registry.Assigned(s), Labels: s.Hello.Labels, ConnectedAt: timestamppb.New(s.Since),
		})
	}
	return out
}
