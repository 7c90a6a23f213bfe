package workers

import (
	"context"
	"sync"
	"time"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/workerstream"
	"quartet/services/task/model"
)

// orderTimeout bounds how long an order about a worktree waits for its report.
// The worker continues with it; a caller that repeats the order gets the result.
const orderTimeout = 10 * time.Second

// pendingOrders are the orders about worktrees whose reports have not arrived,
// and the sessions whose workers take such orders. Nothing else records orders:
// they may be repeated, and reports may be lost. Its zero value is ready for use.
type pendingOrders struct {
	mu      sync.Mutex
	reports map[string]chan *taskv1.WorktreeReport                 // by order id
	takers  map[*workerstream.Session[taskv1.ConnectResponse]]bool // sessions of workers that take orders
}

// register records that a session's worker takes orders.
func (o *pendingOrders) register(s *workerstream.Session[taskv1.ConnectResponse]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.takers == nil {
		o.takers = make(map[*workerstream.Session[taskv1.ConnectResponse]]bool)
	}
	o.takers[s] = true
}

// unregister forgets a session that has ended.
func (o *pendingOrders) unregister(s *workerstream.Session[taskv1.ConnectResponse]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.takers, s)
}

// takes reports whether a session's worker takes orders.
func (o *pendingOrders) takes(s *workerstream.Session[taskv1.ConnectResponse]) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.takers[s]
}

// add begins to wait for a report. The caller must call forget.
func (o *pendingOrders) add(orderID string) (report <-chan *taskv1.WorktreeReport, forget func()) {
	c := make(chan *taskv1.WorktreeReport, 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reports == nil {
		o.reports = make(map[string]chan *taskv1.WorktreeReport)
	}
	o.reports[orderID] = c
	return c, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.reports, orderID)
	}
}

// complete gives a report to the caller that waits for it, if one still does.
func (o *pendingOrders) complete(r *taskv1.WorktreeReport) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.reports[r.GetOrderId()]; c != nil {
		delete(o.reports, r.GetOrderId())
		c <- r
	}
}

// Order sends a worker an order about a worktree and waits for the report. It sets order.OrderId.
// It returns NOT_READY if the worker is not connected, disconnects, or does not report within
// orderTimeout, or if the service stops. The worker may carry out the order nevertheless; the caller may repeat it.
func (h *Hub) Order(ctx context.Context, worker model.WorkerKey, order *taskv1.WorktreeOrder) (*taskv1.WorktreeReport,
	error,
) {
	s := h.registry.Find(worker)
	if s == nil {
		return nil, fault.NotReady.Newf("worker %s is not connected", worker.ID).With("worker_id", worker.ID)
	}
	order.OrderId = h.cfg.IDs.New("ord_")
	report, forget := h.orders.add(order.GetOrderId())
	defer forget()
	s.Send(&taskv1.ConnectResponse{Message: &taskv1.ConnectResponse_Worktree{Worktree: order}})
	timer := h.cfg.Clock.TimerAt(h.cfg.Clock.Now().Add(orderTimeout))
	defer timer.Stop()
	select {
	case r := <-report:
		return r, nil
	case <-s.Context().Done():
		return nil, fault.NotReady.Newf("worker %s disconnected before it reported", worker.ID).
			With("worker_id", worker.ID)
	case <-timer.C():
		return nil, fault.NotReady.Newf("worker %s has not reported within %s; ask again", worker.ID, orderTimeout).
			With("worker_id", worker.ID)
	case <-ctx.Done():
		return nil, fault.From(ctx.Err())
	case <-h.ctx.Done():
		return nil, fault.NotReady.New("the task service is stopping; ask again")
	}
}

// WorktreeWorkers returns the connected workers that create worktrees for a
// namespace, sorted by id.
func (h *Hub) WorktreeWorkers(namespace string) []model.WorkerKey {
	var out []model.WorkerKey
	for _, s := range h.registry.Open() {
		if h.orders.takes(s) && (s.Key.Namespace == "" || s.Key.Namespace == namespace) {
			out = append(out, s.Key)
		}
	}
	return out
}
