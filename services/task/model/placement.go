package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// DefaultPool is the pool of commands that name none and of workers that name none.
const DefaultPool = "default"

// Placement says which workers may take a command (SPEC T4).
type Placement struct {
	Namespace string
	Pool      string
	labels    map[string]string // all of them, with just these values
	PinnedTo  WorkerKey         // the one worker that may; no id: any
}

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

// Key is the same for commands that the same workers may take.
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
	Worker        WorkerKey // its namespace is whose commands it takes
	BootID        string
	Capacity      int
	Pools         []string // none: DefaultPool
	Labels        map[string]string
	HeldElsewhere int // commands it runs for other partitions
}

// Accepts reports whether commands placed so may go to the worker: those of its
// namespace and pools whose labels it has. One that is pinned goes to the worker
// that holds its worktree, whatever that serves besides.
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

// WorkerOf is the worker that holds a worktree, of those that a namespace may use.
func WorkerOf(ns string, id string, shared bool) WorkerKey {
	if shared {
		ns = ""
	}
	return WorkerKey{ns, id}
}
