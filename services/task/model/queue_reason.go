package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Values of Task.queue_reason: why no worker has a command yet.
const (
	QueuedNoWorker   = "no_worker"          // none is connected that serves the namespace
	QueuedNoMatch    = "no_matching_worker" // none of them has the pool and the labels
	QueuedBusy       = "workers_busy"       // those that match have no free capacity
	QueuedPinnedAway = "pinned_worker_away" // the only worker that may run it is not connected
	QueuedSoon       = "not_yet_leased"     // a worker has room
)

// maxNamedWorkers bounds how many workers a message names.
const maxNamedWorkers = 5

// ExplainQueued returns why a command waits, as a value of Task.queue_reason and as a
// message for people. slots are the connected workers, and running returns how many
// commands each of them has.
func ExplainQueued(p Placement, slots []WorkerSlot, running func(WorkerKey) int) (reason, message string) {
	var match []WorkerSlot
	reachable := slots[:0:0]
	room := 0
	for _, w := range slots {
		// a tenant must not learn of another tenant's workers
		if w.Worker.Namespace == "" || w.Worker.Namespace == p.Namespace {
			reachable = append(reachable, w)
		}
		if w.Accepts(p) {
			match = append(match, w)
			room += max(0, w.Capacity-running(w.Worker))
		}
	}
	switch {
	case len(match) > 0 && room == 0:
		return QueuedBusy, fmt.Sprintf("waits for free capacity: %s", describeWorkers(match, running))
	case len(match) > 0:
		return QueuedSoon, fmt.Sprintf("is about to be given to one of %s", describeWorkers(match, running))
	case p.PinnedTo.ID != "":
		return QueuedPinnedAway, fmt.Sprintf("only worker %s may run it, because it has the worktree, and it is not "+
			"connected; start it again with the same id", p.PinnedTo.ID)
	case len(reachable) == 0:
		return QueuedNoWorker, "no worker is connected; start one with quartet worker --root DIR"
	}
	return QueuedNoMatch, fmt.Sprintf("needs a worker of pool %s%s; connected: %s", p.Pool,
		labelText(" with ", p.labels), describeWorkers(reachable, running))
}

// labelText returns labels by name after the text before, or "" without labels.
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

// describeWorkers lists workers by id, at most maxNamedWorkers, with their pools, labels, and
// how many commands they run of how many. It sorts slots.
func describeWorkers(slots []WorkerSlot, running func(WorkerKey) int) string {
	slices.SortFunc(slots, func(a, b WorkerSlot) int { return strings.Compare(a.Worker.ID, b.Worker.ID) })
	var parts []string
	for i, w := range slots {
		if i == maxNamedWorkers {
			parts = append(parts, fmt.Sprintf("and %d more", len(slots)-i))
			break
		}
		pools := strings.Join(w.Pools, ",")
		if pools == "" {
			pools = DefaultPool
		}
		parts = append(parts, fmt.Sprintf("%s (pool %s%s, %d of %d commands)", w.Worker.ID, pools,
			labelText(", ", w.Labels), running(w.Worker), w.Capacity))
	}
	return strings.Join(parts, ", ")
}
