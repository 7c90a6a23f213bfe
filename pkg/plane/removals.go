package plane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"quartet/pkg/journal"
	"quartet/pkg/meter"
)

// The causes for which events are removed from archives, as the metrics name them.
const (
	causeHistory = "history" // they are older than history is kept
	causeErase   = "erase"   // their agent was deleted
)

// Removals records for which partitions of a process the last pass that removes events failed. The zero value is
// ready to use.
type Removals struct {
	mu     sync.Mutex
	failed map[string]string // by plane, partition and cause: what is not removed, and why
}

// Failed returns what was not removed and why, one text for each partition and cause; nil if the last passes were
// complete.
func (r *Removals) Failed() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, text := range r.failed {
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// set records why a pass failed; "" if it was complete, or if the partition is not held any more.
func (r *Removals) set(key, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text == "" {
		delete(r.failed, key)
		return
	}
	if r.failed == nil {
		r.failed = map[string]string{}
	}
	r.failed[key] = text
}

// removal counts what the passes of a plane remove for one cause.
type removal struct {
	plane, cause     string
	removals         *Removals
	events, failures prometheus.Counter
	failed, last     *prometheus.GaugeVec
}

func newRemoval(reg prometheus.Registerer, removals *Removals, plane, cause string) *removal {
	return &removal{
		plane: plane, cause: cause, removals: removals,
		events: meter.Counter(reg, "quartet_removed_events_total", "Events removed from the archives of journals, "+
			"by cause: history, because they are older than history-days; erase, because their agent was deleted.",
			"plane", "cause").WithLabelValues(plane, cause),
		failures: meter.Counter(reg, "quartet_removal_failures_total",
			"Passes over a partition that did not remove all that they had to; each is tried again.", "plane", "cause").
			WithLabelValues(plane, cause),
		failed: meter.Gauge(reg, "quartet_removal_failed", "1 while old events, or those of deleted agents, are "+
			"still stored because the last pass over their partition failed; 0 otherwise.", "plane", "partition",
			"cause"),
		last: meter.Gauge(reg, "quartet_removal_last_pass_timestamp_seconds",
			"When a pass over the partition was complete last, as Unix time. It is not there before the first time.",
			"plane", "partition", "cause"),
	}
}

// recordPass counts a pass over a partition that ended at a time, and returns its error, nil if the partition is not
// held. A pass that failed because ctx has ended, as when the plane is closed, is not counted as a failure.
func (r *removal) recordPass(ctx context.Context, partition int, events int64, err error, endedAt time.Time) error {
	r.events.Add(float64(events))
	switch {
	case errors.Is(err, journal.ErrNotHeld):
		r.forget(partition)
		return nil
	case err == nil:
		r.removals.set(r.key(partition), "")
		r.failed.WithLabelValues(r.labels(partition)...).Set(0)
		r.last.WithLabelValues(r.labels(partition)...).Set(float64(endedAt.Unix()))
	case ctx.Err() == nil:
		r.failures.Inc()
		r.failed.WithLabelValues(r.labels(partition)...).Set(1)
		what := "old events (history-days)"
		if r.cause == causeErase {
			what = "all events of deleted agents (erase-after)"
		}
		r.removals.set(r.key(partition), fmt.Sprintf("%s/%d still has %s: %v", r.plane, partition, what, err))
	}
	return err
}

// forget removes what is known of a partition that is not held any more.
func (r *removal) forget(partition int) {
	r.removals.set(r.key(partition), "")
	r.failed.DeleteLabelValues(r.labels(partition)...)
	r.last.DeleteLabelValues(r.labels(partition)...)
}

func (r *removal) labels(partition int) []string {
	return []string{r.plane, strconv.Itoa(partition), r.cause}
}

func (r *removal) key(partition int) string {
	return fmt.Sprintf("%s/%d %s", r.plane, partition, r.cause)
}
