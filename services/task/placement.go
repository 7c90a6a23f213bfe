package task

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// DefaultPool is the pool of commands that name none and of workers that name none.
const DefaultPool = "default"

// placement says which workers may take a command (SPEC T4).
type placement struct {
	namespace string
	pool      string
	labels    map[string]string // all of them, with just these values
	pin       workerKey         // the one worker that may; no id: any
}

func placementOf(ns string, t *taskv1.Task) placement {
	p := placement{namespace: ns, pool: DefaultPool, labels: t.GetCommand().GetWorkerLabels()}
	if pool := t.GetCommand().GetPool(); pool != "" {
		p.pool = pool
	}
	if pin := t.GetPinnedWorkerId(); pin != "" {
		p.pin = holder(ns, pin, t.GetPinnedSharedWorker())
	}
	return p
}

// key is the same for commands that the same workers may take.
func (p placement) key() string {
	if p.pin.id == "" && len(p.labels) == 0 {
		return p.namespace + "\n" + p.pool
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n%s\n%s", p.namespace, p.pool, p.pin.namespace, p.pin.id)
	for _, name := range slices.Sorted(maps.Keys(p.labels)) {
		fmt.Fprintf(&b, "\n%q=%q", name, p.labels[name])
	}
	return b.String()
}

// slot is a connected worker that may take commands.
type slot struct {
	worker    workerKey // its namespace is whose commands it takes
	bootID    string
	capacity  int
	pools     []string // none: DefaultPool
	labels    map[string]string
	elsewhere int // commands it runs for other partitions
}

// takes reports whether commands placed so may go to the worker: those of its
// namespace and pools whose labels it has. One that is pinned goes to the worker
// that holds its worktree, whatever that serves besides.
func (w slot) takes(p placement) bool {
	if p.pin.id != "" {
		return w.worker == p.pin
	}
	if w.worker.namespace != "" && w.worker.namespace != p.namespace {
		return false
	}
	if len(w.pools) == 0 && p.pool != DefaultPool || len(w.pools) > 0 && !slices.Contains(w.pools, p.pool) {
		return false
	}
	for name, want := range p.labels {
		if have, ok := w.labels[name]; !ok || have != want {
			return false
		}
	}
	return true
}

// Why no worker has a command (Task.queue_reason).
const (
	queuedNoWorker   = "no_worker"
	queuedNoMatch    = "no_matching_worker"
	queuedBusy       = "workers_busy"
	queuedPinnedAway = "pinned_worker_away"
	queuedSoon       = "not_yet_leased"
)

// shownWorkers bounds how many workers a message names.
const shownWorkers = 5

// whyQueued explains to people why a command waits, from who is connected and how
// many commands each of them runs.
func whyQueued(p placement, slots []slot, running func(workerKey) int) (reason, message string) {
	var match []slot
	reachable := slots[:0:0]
	room := 0
	for _, w := range slots {
		if w.worker.namespace == "" || w.worker.namespace == p.namespace { // no tenant hears of another's workers
			reachable = append(reachable, w)
		}
		if w.takes(p) {
			match = append(match, w)
			room += max(0, w.capacity-running(w.worker))
		}
	}
	switch {
	case len(match) > 0 && room == 0:
		return queuedBusy, fmt.Sprintf("waits for a free place: %s", describe(match, running))
	case len(match) > 0:
		return queuedSoon, fmt.Sprintf("is about to be given to one of %s", describe(match, running))
	case p.pin.id != "":
		return queuedPinnedAway, fmt.Sprintf("only worker %s may run it, since that holds its worktree, and it is not connected; start it again with the same id", p.pin.id)
	case len(reachable) == 0:
		return queuedNoWorker, "no worker is connected; start one with quartet worker --root DIR"
	}
	return queuedNoMatch, fmt.Sprintf("needs a worker of pool %s%s; connected: %s", p.pool, labelText(" with ", p.labels), describe(reachable, running))
}

func labelText(before string, labels map[string]string) string {
	if len(labels) == 0 {
		return ""
	}
	parts := make([]string, 0, len(labels))
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, name+"="+labels[name])
	}
	return before + strings.Join(parts, ",")
}

// describe names workers with what they serve and how full they are.
func describe(slots []slot, running func(workerKey) int) string {
	slices.SortFunc(slots, func(a, b slot) int { return strings.Compare(a.worker.id, b.worker.id) })
	var parts []string
	for i, w := range slots {
		if i == shownWorkers {
			parts = append(parts, fmt.Sprintf("and %d more", len(slots)-i))
			break
		}
		pools := strings.Join(w.pools, ",")
		if pools == "" {
			pools = DefaultPool
		}
		parts = append(parts, fmt.Sprintf("%s (pool %s%s, %d of %d places taken)", w.worker.id, pools, labelText(", ", w.labels), running(w.worker), w.capacity))
	}
	return strings.Join(parts, ", ")
}
