package task

import (
	"sync"
	"time"

	"quartet/pkg/clock"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// lease is what the service knows of a live command beyond the journal: until
// when its worker may be silent, and how far its output is stored. It is
// rebuilt at every start, with a full term (SPEC X12).
type lease struct {
	taskID, namespace, agent string
	worker                   model.WorkerKey
	generation               int64

	// write is held while output is stored and while the end is written, so
	// that nothing is stored behind the end.
	write sync.Mutex
	ended bool // guarded by write

	// Guarded by leases.mu.
	expires   time.Time
	stall     time.Duration // Partition.StallTotal when the term began
	confirmed int64         // the last input the worker handed over
	output    int64         // where the stored output ends
}

// leases holds the live commands and fires those whose worker is silent.
type leases struct {
	clk  clock.Clock
	term time.Duration
	due  *clock.Due

	mu     sync.Mutex
	byTask map[string]*lease
}

// newLeases calls lapsed, from one goroutine, with leases whose term is over.
func newLeases(clk clock.Clock, term time.Duration, lapsed func(*lease)) *leases {
	l := &leases{clk: clk, term: term, byTask: make(map[string]*lease)}
	l.due = clock.NewDue(clk, func(keys []string) {
		for _, key := range keys {
			if one := l.get(key); one != nil {
				lapsed(one)
			}
		}
	})
	return l
}

// arm begins a term for a command that was leased, or renews it.
func (l *leases) arm(ns string, worker model.WorkerKey, t *taskv1.Task, stall time.Duration) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.byTask[t.GetTaskId()]
	if one == nil || one.generation != t.GetLeaseGeneration() {
		one = &lease{
			taskID: t.GetTaskId(), namespace: ns, agent: t.GetAgentId(),
			worker: worker, generation: t.GetLeaseGeneration(),
		}
		l.byTask[one.taskID] = one
	}
	l.extend(one, stall)
	return one
}

// renew gives a lease a new term.
func (l *leases) renew(one *lease, stall time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byTask[one.taskID] == one {
		l.extend(one, stall)
	}
}

func (l *leases) extend(one *lease, stall time.Duration) {
	one.expires, one.stall = l.clk.Now().Add(l.term), stall
	l.due.Set(one.taskID, one.expires)
}

// over reports whether a lease has lapsed. If it was renewed meanwhile, or the
// journal stalled during the term, which is added to it, it is armed again.
func (l *leases) over(one *lease, stalled, total time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byTask[one.taskID] != one {
		return false
	}
	now := l.clk.Now()
	if stalled > 0 { // a worker cannot report what cannot be written
		l.due.Set(one.taskID, now.Add(time.Second))
		return false
	}
	one.expires = one.expires.Add(total - one.stall)
	one.stall = total
	if one.expires.After(now) {
		l.due.Set(one.taskID, one.expires)
		return false
	}
	return true
}

// again lets a lease that is over be looked at once more, a little later.
func (l *leases) again(one *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byTask[one.taskID] == one {
		l.due.Set(one.taskID, l.clk.Now().Add(time.Second))
	}
}

// get gives the lease of a live command, or nil.
func (l *leases) get(taskID string) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byTask[taskID]
}

func (l *leases) drop(taskID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byTask, taskID)
	l.due.Remove(taskID)
}

func (l *leases) expiry(one *lease) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return one.expires
}

func (l *leases) stored(one *lease, end int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one.output = max(one.output, end)
}

func (l *leases) confirm(one *lease, seq int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one.confirmed = max(one.confirmed, seq)
}

func (l *leases) confirmed(one *lease) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return one.confirmed
}

// running counts the commands that each worker has.
func (l *leases) running() map[model.WorkerKey]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := make(map[model.WorkerKey]int)
	for _, one := range l.byTask {
		n[one.worker]++
	}
	return n
}

// outputEnd is where the stored output of a live command ends, 0 if unknown.
func (l *leases) outputEnd(taskID string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.byTask[taskID]; one != nil {
		return one.output
	}
	return 0
}
