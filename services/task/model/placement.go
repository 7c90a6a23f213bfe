package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
)

// DefaultPool is the pool of commands that name none and of workers that name none.
const DefaultPool = "default"

// Placement says which workers may take a command (SPEC T4).
type Placement struct {
	Namespace string
	Pool      string
	labels    map[string]string // the worker must have all of them with these values
	PinnedTo  WorkerKey         // the only worker that may; an empty id: any
}

// PlacementOf returns the placement of a command of a namespace.
func PlacementOf(ns string, t *taskv1.Task) Placement {
	p := Placement{Namespace: ns, Pool: DefaultPool, labels: t.GetCommand().GetWorkerLabels()}
	if pool := t.GetCommand().GetPool(); pool != "" {
		p.Pool = pool
	}
	if pin := t.GetPinnedWorkerId(); pin != "" {
		p.PinnedTo = WorkerOf(ns, pin, t.GetPinnedSharedWorker())
	}
	return p
}

// Key returns a string that is the same for equal placements and different for others. It is the key of
// a queue of commands.
func (p Placement) Key() string {
	if p.PinnedTo.ID == "" && len(p.labels) == 0 {
		return p.Namespace + "\n" + p.Pool
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n%s\n%s", p.Namespace, p.Pool, p.PinnedTo.Namespace, p.PinnedTo.ID)
	for _, name := range slices.Sorted(maps.Keys(p.labels)) {
		fmt.Fprintf(&b, "\n%q=%q", name, p.labels[name])
	}
	return b.String()
}

// WorkerSlot is a connected worker that may take commands.
type WorkerSlot struct {
	Worker        WorkerKey // its namespace is that of the commands it takes; empty: all
	BootID        string    // of its process
	Capacity      int       // how many commands it runs at once
	Pools         []string  // empty: DefaultPool
	Labels        map[string]string
	HeldElsewhere int // commands that it has in other partitions
}

// Accepts reports whether the worker may take commands with a placement: those of its
// namespace and pools whose labels it has. A pinned command goes to the worker that
// has its worktree, whichever pools that serves.
func (w WorkerSlot) Accepts(p Placement) bool {
	if p.PinnedTo.ID != "" {
		return w.Worker == p.PinnedTo
	}
	if w.Worker.Namespace != "" && w.Worker.Namespace != p.Namespace {
		return false
	}
	if len(w.Pools) == 0 && p.Pool != DefaultPool || len(w.Pools) > 0 && !slices.Contains(w.Pools, p.Pool) {
		return false
	}
	for name, want := range p.labels {
		if have, ok := w.Labels[name]; !ok || have != want {
			return false
		}
	}
	return true
}

// WorkerOf returns the key of a worker that a namespace uses. shared says that the
// worker serves all namespaces.
func WorkerOf(ns string, id string, shared bool) WorkerKey {
	if shared {
		ns = ""
	}
	return plane.KeyOf(ns, id)
}
