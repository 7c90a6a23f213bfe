package worker

import (
	"cmp"
	"slices"
	"sync"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// orders are those about worktrees that were not carried out yet. Orders about
// one worktree follow each other, so that a make that was asked for twice never
// comes after the removal that was asked for next.
type orders struct {
	mu    sync.Mutex
	lanes map[string][]*taskv1.WorktreeOrder
}

// add queues an order and reports whether its lane has to be worked on. A later
// order of the same kind takes the place of one that nobody began: who asked for
// that has asked again.
func (o *orders) add(order *taskv1.WorktreeOrder) (lane string, begin bool) {
	lane = cmp.Or(order.GetWorktree().GetPath(), "plan:"+order.GetWorkspaceRoot())
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lanes == nil {
		o.lanes = map[string][]*taskv1.WorktreeOrder{}
	}
	waiting, running := o.lanes[lane]
	if n := len(waiting); n > 0 && waiting[n-1].GetVerb() == order.GetVerb() {
		waiting = slices.Clone(waiting[:n-1])
	}
	o.lanes[lane] = append(waiting, order)
	return lane, !running
}

// next takes the oldest order of a lane; nil: it is done.
func (o *orders) next(lane string) *taskv1.WorktreeOrder {
	o.mu.Lock()
	defer o.mu.Unlock()
	waiting := o.lanes[lane]
	if len(waiting) == 0 {
		delete(o.lanes, lane)
		return nil
	}
	o.lanes[lane] = waiting[1:]
	return waiting[0]
}

// order takes an order. While stopping it is left to the next life: it is asked
// again.
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
		for o := w.orders.next(lane); o != nil; o = w.orders.next(lane) {
			r := w.carryOut(w.errands, o)
			if w.errands.Err() != nil {
				return
			}
			w.mu.Lock()
			link := w.link
			w.mu.Unlock()
			if link != nil {
				link.report(r)
			}
		}
	})
}
