package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// The sizes of the measured installations.
const (
	idleAgents    = 100_000
	itemsPerIdle  = 3
	manyItems     = 1_000_000
	manyAgents    = 10_000
	smallAgents   = 10 // each has as many items as each of manyAgents has
	fillers       = 256
	readers       = 16
	nameQueue     = "GetWorkQueue"
	nameList      = "ListWorkItems, a page of 20 queued ones"
	nameIdle      = "100 000 idle agents with 3 open items"
	nameIdleItems = "heap for each of 100 000 idle agents with 3 open items"
	nameRestart   = "restart with their journal"
)

// measureIdle measures what 100 000 idle agents with three open items each cost: memory,
// processor time, the latency of deliveries among them, and a restart from their journal. All
// are measured if nameIdle is wanted.
func measureIdle(ctx context.Context, o options, say func(row)) error {
	if !o.wants(nameIdle) {
		return nil
	}
	dir := filepath.Join(o.dir, "idle")
	q, err := start(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { q.stop(ctx) }()
	empty := heap()
	if err := q.spawn(ctx, idleAgents); err != nil {
		return err
	}
	if err := q.fill(ctx, idleAgents, idleAgents*itemsPerIdle, workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT); err != nil {
		return err
	}
	rest(ctx)
	<-time.After(calmAfter)
	each := (heap() - empty) / idleAgents
	if o.mem != "" {
		if err := writeHeap(o.mem + ".inuse"); err != nil {
			return err
		}
	}
	say(row{name: nameIdleItems, note: fmt.Sprintf("%.1f KiB of heap each (target ≤ 6), the whole process %d MiB "+
		"resident (target ≤ 1024)", float64(each)/1024, resident()>>20)})
	before := cpuTime()
	const watched = 10 * time.Second
	<-time.After(watched)
	say(row{name: nameIdle, note: fmt.Sprintf("%.2f %% of one core", 100*(cpuTime()-before).
		Seconds()/watched.Seconds())})
	// One more agent, without work items.
	if _, err := q.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: agentName(idleAgents), Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}); err != nil {
		return err
	}
	all := options{span: o.span, only: anything}
	if err := measureLatency(ctx, all, q, agentName(idleAgents), false, func(r row) {
		r.name += " among them"
		say(r)
	}); err != nil {
		return err
	}
	q.stop(ctx)
	profiled, err := o.profile() // only of the restart
	if err != nil {
		return err
	}
	began := time.Now()
	if q, err = start(ctx, dir); err != nil {
		return err
	}
	took := time.Since(began)
	if err := profiled(); err != nil {
		return err
	}
	say(row{
		name: nameRestart, note: fmt.Sprintf("%s for the %d mutations that made them, until it answers; no snapshot",
			took.Round(10*time.Millisecond), idleAgents*(1+itemsPerIdle)),
	})
	return q.spawn(ctx, 1) // fails unless the restarted system answers
}

// calmAfter is the time after which an idle server has released the memory that it used while it was
// busy. NATS keeps the subject index of a block of messages for two minutes after its last use; here
// that is a fifth of all memory.
const calmAfter = 150 * time.Second

// measureScale measures whether a read costs the same among a million items as among a
// thousand.
func measureScale(ctx context.Context, o options, say func(row)) error {
	if !o.wants(nameQueue) && !o.wants(nameList) {
		return nil
	}
	var q [2]*quartet
	for i, agents := range []int{smallAgents, manyAgents} {
		var err error
		if q[i], err = start(ctx, filepath.Join(o.dir, "scale"+strconv.Itoa(i))); err != nil {
			return err
		}
		defer q[i].stop(ctx)
		if err := q[i].spawn(ctx, agents); err != nil {
			return err
		}
		if err := q[i].fill(ctx, agents, agents*manyItems/manyAgents, workv1.PlanStatus_PLAN_STATUS_READY); err != nil {
			return err
		}
	}
	var figures []figure
	for i, agents := range []int{smallAgents, manyAgents} {
		size := fmt.Sprintf(", %d items of %d agents", agents*manyItems/manyAgents, agents)
		wk := q[i].work
		figures = append(figures,
			figure{name: nameQueue + size, op: func(ctx context.Context, caller, n int) error {
				_, err := wk.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{
					AgentId: agentName(spread(caller, n, agents)),
				})
				return err
			}},
			figure{name: nameList + size, op: func(ctx context.Context, caller, n int) error {
				_, err := wk.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{
					AgentId: agentName(spread(caller, n, agents)), PageSize: 20,
					Filter: workv1.WorkItemFilter_WORK_ITEM_FILTER_QUEUED,
				})
				return err
			}})
	}
	rows, err := alternate(ctx, readers, o.span, figures)
	for _, r := range rows {
		say(r)
	}
	return err
}

// spread returns the number of an agent, so that consecutive calls are about agents that are far from each other.
func spread(caller, n, agents int) int { return (caller*7919 + n*104729) % agents }

// spawn creates those of the agents 0 to n-1 that do not exist.
func (q *quartet) spawn(ctx context.Context, n int) error {
	return each(ctx, n, func(ctx context.Context, i int) error {
		_, err := q.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: agentName(i), Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, RequestId: "spawn-" + strconv.Itoa(i),
		})
		return err
	})
}

// fill creates n items, distributed over the agents.
func (q *quartet) fill(ctx context.Context, agents, n int, status workv1.PlanStatus) error {
	return each(ctx, n, func(ctx context.Context, i int) error {
		_, err := q.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId: agentName(i % agents), Objective: fmt.Sprintf("Item %d, with an objective of ordinary length "+
				"for such a thing", i),
			PlanStatus: status,
		})
		return err
	})
}

// each calls fn with the numbers 0 to n-1 from fillers goroutines, until one call fails, and returns its error.
func each(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for range fillers {
		all.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := fn(ctx, i); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// heap returns the live heap after a collection, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC() // frees objects whose finalizers ran after the first one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// resident returns the resident memory of the process in bytes, or 0 if it is unknown.
func resident() int64 {
	stat, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
