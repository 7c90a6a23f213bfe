package board

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
	"quartet/services/board/patch"
)

// floor is the connected workers. What they have is in the journal too; this is
// who can be reached, and who has room. Its zero value works.
type floor struct {
	mu      sync.Mutex
	workers map[model.Key]*worker // by namespace and worker_id
	byRun   map[model.Key]*worker
}

// worker is one stream of one worker. Guarded by floor.mu but for what never changes.
type worker struct {
	namespace, id string
	hello         *boardv1.BoardWorkerHello
	since         *timestamppb.Timestamp
	link          *link
	runs          map[string]bool
	reserved      int
	want          int
}

// place is room on a worker that was set aside for a run.
type place struct {
	on     *worker
	worker string
}

func (w *worker) room() int { return int(w.hello.GetCapacity()) - len(w.runs) - w.reserved }

// join takes a worker in, in place of an older stream of it.
func (f *floor) join(w *worker) (replaced *link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.workers == nil {
		f.workers, f.byRun = map[model.Key]*worker{}, map[model.Key]*worker{}
	}
	k := model.Key{Namespace: w.namespace, ID: w.id}
	if old := f.workers[k]; old != nil {
		replaced = old.link
	}
	f.workers[k] = w
	return replaced
}

func (f *floor) leave(w *worker) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := (model.Key{Namespace: w.namespace, ID: w.id}); f.workers[k] == w {
		delete(f.workers, k)
	}
	for id := range w.runs {
		if k := (model.Key{Namespace: w.namespace, ID: id}); f.byRun[k] == w {
			delete(f.byRun, k)
		}
	}
}

// took notes runs that a worker has.
func (f *floor) took(w *worker, runIDs ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range runIDs {
		w.runs[id] = true
		f.byRun[model.Key{Namespace: w.namespace, ID: id}] = w
	}
}

// release notes that a run is over.
func (f *floor) release(namespace string, runIDs ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range runIDs {
		k := model.Key{Namespace: namespace, ID: id}
		if w := f.byRun[k]; w != nil {
			delete(w.runs, id)
			delete(f.byRun, k)
		}
	}
}

// reserve finds room for a run in a pool, on one worker if it is named.
func (f *floor) reserve(namespace, pool, workerID string) (place, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if workerID != "" {
		w := f.workers[model.Key{Namespace: namespace, ID: workerID}]
		switch {
		case w == nil:
			return place{}, fault.NotFound.Newf("no worker %q is connected; ListWorkers shows who is", workerID).With("worker_id", workerID)
		case !slices.Contains(w.hello.GetWorkerPoolIds(), pool):
			return place{}, fault.NotFound.Newf("worker %q is not in pool %q", workerID, pool).With("worker_id", workerID).With("worker_pool_id", pool)
		case w.room() <= 0:
			return place{}, fault.WorkerBusy.Newf("worker %q has %d runs and room for no more", workerID, len(w.runs)+w.reserved).With("worker_id", workerID)
		}
		w.reserved++
		return place{w, w.id}, nil
	}
	var best *worker
	n := 0
	for k, w := range f.workers {
		if k.Namespace != namespace || !slices.Contains(w.hello.GetWorkerPoolIds(), pool) {
			continue
		}
		n++
		if w.room() > 0 && (best == nil || w.room() > best.room() || w.room() == best.room() && w.id < best.id) {
			best = w
		}
	}
	if best == nil {
		return place{}, fault.WorkerPoolBusy.Newf("none of the %d connected workers of pool %q has room for a run", n, pool).With("worker_pool_id", pool)
	}
	best.reserved++
	return place{best, best.id}, nil
}

func (f *floor) giveBack(p place) {
	if p.on == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p.on.reserved--
}

// hand gives a dispatched run to the worker it was dispatched to, if that is
// still there; it hears of it when it comes back otherwise.
func (f *floor) hand(p place, run *boardv1.WorkerRun) bool {
	if p.on == nil {
		return false
	}
	f.mu.Lock()
	if f.workers[model.Key{Namespace: p.on.namespace, ID: p.on.id}] != p.on {
		f.mu.Unlock()
		return false
	}
	if p.on.runs[run.GetRunId()] {
		f.mu.Unlock()
		return false
	}
	p.on.reserved--
	p.on.runs[run.GetRunId()] = true
	f.byRun[model.Key{Namespace: p.on.namespace, ID: run.GetRunId()}] = p.on
	f.mu.Unlock()
	p.on.link.start(run)
	return true
}

// stop tells a run's worker to stop it.
func (f *floor) stop(namespace, runID string) {
	f.mu.Lock()
	w := f.byRun[model.Key{Namespace: namespace, ID: runID}]
	f.mu.Unlock()
	if w != nil {
		w.link.send(&boardv1.ConnectResponse{CancelRunIds: []string{runID}})
	}
}

// poke wakes the workers that wait for steps.
func (f *floor) poke() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.workers {
		if w.want > 0 {
			w.link.wakeUp()
		}
	}
}

// ListWorkers reads the connected workers.
func (s *Service) ListWorkers(ctx context.Context, req *boardv1.ListWorkersRequest) (*boardv1.ListWorkersResponse, error) {
	if err := fault.First(
		rpc.RequireRole(ctx, rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleAgent, rpc.RoleService, rpc.RoleRunner),
		patch.OptionalName("worker_pool_id", req.GetWorkerPoolId()),
	); err != nil {
		return nil, err
	}
	namespace := rpc.ActorFrom(ctx).Namespace
	out := &boardv1.ListWorkersResponse{}
	f := &s.floor
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, w := range f.workers {
		if k.Namespace != namespace || req.GetWorkerPoolId() != "" && !slices.Contains(w.hello.GetWorkerPoolIds(), req.GetWorkerPoolId()) {
			continue
		}
		out.Workers = append(out.Workers, &boardv1.BoardWorker{
			WorkerId: w.id, WorkerPoolIds: w.hello.GetWorkerPoolIds(), Capacity: w.hello.GetCapacity(),
			RunIds: slices.Sorted(maps.Keys(w.runs)), Labels: w.hello.GetLabels(), ConnectedAt: w.since,
		})
	}
	slices.SortFunc(out.Workers, func(x, y *boardv1.BoardWorker) int { return cmp.Compare(x.GetWorkerId(), y.GetWorkerId()) })
	return out, nil
}
