package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Why no worker has a command (Task.queue_reason).
const (
	QueuedNoWorker   = "no_worker"
	QueuedNoMatch    = "no_matching_worker"
	QueuedBusy       = "workers_busy"
	QueuedPinnedAway = "pinned_worker_away"
	QueuedSoon       = "not_yet_leased"
)

// shownWorkers bounds how many workers a message names.
const shownWorkers = 5

// ExplainQueued explains to people why a command waits, from who is connected and how
// many commands each of them runs.
func ExplainQueued(p Placement, slots []WorkerSlot, running func(WorkerKey) int) (reason, message string) {
	var match []WorkerSlot
	reachable := slots[:0:0]
	room := 0
	for _, w := range slots {
		if w.Worker.Namespace == "" || w.Worker.Namespace == p.Namespace { // no tenant hears of another's workers
			reachable = append(reachable, w)
		}
		if w.Accepts(p) {
			match = append(match, w)
			room += max(0, w.Capacity-running(w.Worker))
		}
	}
	switch {
	case len(match) > 0 && room == 0:
		return QueuedBusy, fmt.Sprintf("waits for a free place: %s", describeWorkers(match, running))
	case len(match) > 0:
		return QueuedSoon, fmt.Sprintf("is about to be given to one of %s", describeWorkers(match, running))
	case p.PinnedTo.ID != "":
		return QueuedPinnedAway, fmt.Sprintf("only worker %s may run it, since that holds its worktree, and it is not connected; start it again with the same id", p.PinnedTo.ID)
	case len(reachable) == 0:
		return QueuedNoWorker, "no worker is connected; start one with quartet worker --root DIR"
	}
	return QueuedNoMatch, fmt.Sprintf("needs a worker of pool %s%s; connected: %s", p.Pool, labelText(" with ", p.labels), describeWorkers(reachable, running))
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

// describeWorkers names workers with what they serve and how full they are.
func describeWorkers(slots []WorkerSlot, running func(WorkerKey) int) string {
	slices.SortFunc(slots, func(a, b WorkerSlot) int { return strings.Compare(a.Worker.ID, b.Worker.ID) })
	var parts []string
	for i, w := range slots {
		if i == shownWorkers {
			parts = append(parts, fmt.Sprintf("and %d more", len(slots)-i))
			break
		}
		pools := strings.Join(w.Pools, ",")
		if pools == "" {
			pools = DefaultPool
		}
		parts = append(parts, fmt.Sprintf("%s (pool %s%s, %d of %d places taken)", w.Worker.ID, pools, labelText(", ", w.Labels), running(w.Worker), w.Capacity))
	}
	return strings.Join(parts, ", ")
}
