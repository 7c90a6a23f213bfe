package waiting

import (
	"context"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"quartet/pkg/journal"
	"quartet/pkg/meter"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// metrics count durable events.
type metrics struct {
	registered, ended, deliveries, fired *prometheus.CounterVec
	late                                 *prometheus.HistogramVec
	open                                 *prometheus.GaugeVec
}

// newMetrics registers the metrics with reg; nil for a nil reg.
func newMetrics(reg prometheus.Registerer) *metrics {
	if reg == nil {
		return nil
	}
	return &metrics{
		registered: meter.Counter(reg, "quartet_waits_registered_total", "Waits and intents created, by kind.", "kind"),
		ended: meter.Counter(reg, "quartet_waits_ended_total",
			"Waits and intents that ended, by kind and outcome.", "kind", "outcome"),
		deliveries: meter.Counter(reg, "quartet_trigger_deliveries_total", "Deliveries to triggers, by outcome.",
			"outcome"),
		fired: meter.Counter(reg, "quartet_timers_fired_total", "Timers that fired."),
		late: meter.Histogram(reg, "quartet_timer_lag_seconds", "How much later than due timers fired.",
			meter.Work),
		open: meter.Gauge(reg, "quartet_waits_open", "Active waits and intents, by kind.", "partition", "kind"),
	}
}

// kindName returns the label of a kind, such as task.
func kindName(k waitingv1.WaitKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "WAIT_KIND_"))
}

// outcomeName returns the label of an outcome, such as triggered.
func outcomeName(o waitingv1.DeliveryOutcome) string {
	return strings.ToLower(strings.TrimPrefix(o.String(), "DELIVERY_OUTCOME_"))
}

// forget removes the gauges of the given partitions, which this process holds no more. It does
// nothing for nil metrics.
func (m *metrics) forget(parts []*journal.Partition[*State]) {
	if m == nil {
		return
	}
	for _, p := range parts {
		m.open.DeletePartialMatch(prometheus.Labels{"partition": strconv.Itoa(p.Index())})
	}
}

// Sample sets the gauges of active waits from the partitions that this process holds. It does nothing
// before Start or without metrics.
func (s *Service) Sample(ctx context.Context) {
	if s.metrics == nil || s.engine == nil {
		return
	}
	for _, p := range s.engine.All() {
		open, _, err := journal.View(ctx, p, func(st *State) ([waitKinds]int, error) { return st.open, nil })
		if err != nil {
			continue
		}
		for kind := waitingv1.WaitKind(1); kind < waitKinds; kind++ {
			s.metrics.open.WithLabelValues(strconv.Itoa(p.Index()), kindName(kind)).Set(float64(open[kind]))
		}
	}
}
