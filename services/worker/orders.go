package worker

import (
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// planVerb is the verb of orders that change nothing.
const planVerb = taskv1.WorktreeVerb_WORKTREE_VERB_PLAN

// orders holds the orders about worktrees that wait to be carried out. Orders
// about one worktree are carried out one after the other, in the order of their
// arrival, so that a repeated MAKE is never carried out after a later REMOVE.
type orders struct {
	mu sync.Mutex
	// lanes has the waiting orders by worktree, or for PLAN by namespace and workspace root. An entry
	// exists while a goroutine works on it.
	lanes map[string][]*taskv1.WorktreeOrder
}

// add queues an order and reports whether no goroutine works on its lane, so that the caller must
// start one. If the last waiting order about a worktree has the same verb, the task plane has repeated the
// order, and the new one replaces it.
func (o *orders) add(order *taskv1.WorktreeOrder) (lane string, begin bool) {
	plan := order.GetVerb() == planVerb
	lane = order.GetWorktree().GetPath()
	if plan {
		lane = "plan:" + order.GetNamespace() + ":" + order.GetWorkspaceRoot()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lanes == nil {
		o.lanes = map[string][]*taskv1.WorktreeOrder{}
	}
	waiting, running := o.lanes[lane]
	if n := len(waiting); !plan && n > 0 && waiting[n-1].GetVerb() == order.GetVerb() {
		waiting = slices.Clone(waiting[:n-1])
	}
	o.lanes[lane] = append(waiting, order)
	return lane, !running
}

// next removes and returns the oldest order of a lane, and those after it that have the same answer: a PLAN, which
// changes nothing, is carried out once for all that wait. If none is left, it removes the lane and returns none, and
// the calling goroutine must stop working on it.
func (o *orders) next(lane string) []*taskv1.WorktreeOrder {
	o.mu.Lock()
	defer o.mu.Unlock()
	waiting := o.lanes[lane]
	if len(waiting) == 0 {
		delete(o.lanes, lane)
		return nil
	}
	alike := 1
	for alike < len(waiting) && waiting[0].GetVerb() == planVerb && waiting[alike].GetVerb() == planVerb {
		alike++
	}
	o.lanes[lane] = waiting[alike:]
	return waiting[:alike]
}

// order starts to carry out an order in the background. A worker that is stopping ignores it, since the
// task plane repeats the order to the worker's next process. If no session is open afterwards, the report
// is lost.
func (w *Worker) order(order *taskv1.WorktreeOrder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping {
		return
	}
	lane, begin := w.orders.add(order)
	if !begin {
		return
	}
	w.running.Go(func() {
		for alike := w.orders.next(lane); len(alike) > 0; alike = w.orders.next(lane) {
			r := w.carryOut(w.ordersCtx, alike[0])
			if w.ordersCtx.Err() != nil {
				return
			}
			w.mu.Lock()
			session := w.session
			w.mu.Unlock()
			for _, o := range alike {
				if session != nil {
					report := proto.CloneOf(r)
					report.OrderId = o.GetOrderId()
					session.reportWorktree(report)
				}
			}
		}
	})
}
