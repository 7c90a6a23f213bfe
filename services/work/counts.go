package work

import (
	"github.com/prometheus/client_golang/prometheus"

	"quartet/pkg/journal"
	"quartet/pkg/meter"
)

// transitionCounts counts durable events.
type transitionCounts struct {
	created, completed, changed *prometheus.CounterVec
	took                        *prometheus.HistogramVec
}

// newTransitionCounts registers the metrics with reg. It returns nil, which counts nothing, for a nil
// reg.
func newTransitionCounts(reg prometheus.Registerer) *transitionCounts {
	if reg == nil {
		return nil
	}
	return &transitionCounts{
		created:   meter.Counter(reg, "quartet_work_items_created_total", "Work items created."),
		completed: meter.Counter(reg, "quartet_work_items_completed_total", "Work items completed."),
		changed: meter.Counter(reg, "quartet_work_item_readiness_changes_total",
			"Changes of readiness, by the new readiness.", "to"),
		took: meter.Histogram(reg, "quartet_work_item_seconds", "Time from the creation of a work item to its "+
			"completion.", meter.Work),
	}
}

// Count counts the events of one frame of any partition, after they became durable.
func (m *transitionCounts) Count(_ int, events []*journal.Event) {
	if m == nil {
		return
	}
	for _, ev := range events {
		if ev.ReadinessFrom != ev.ReadinessTo && ev.ReadinessTo != "" {
			m.changed.WithLabelValues(ev.ReadinessTo).Inc()
		}
		if row, err := eventRows.Of(ev); err == nil {
			row.count(m, ev)
		}
	}
}
