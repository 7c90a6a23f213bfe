package scheduler

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"quartet/pkg/meter"
)

// metrics counts evaluations and what they decided.
type metrics struct {
	decisions, failures *prometheus.CounterVec
	took                prometheus.Observer
	marked              *prometheus.GaugeVec
}

// newMetrics registers the metrics with reg, which may be nil.
func newMetrics(reg prometheus.Registerer) *metrics {
	return &metrics{
		decisions: meter.Counter(reg, "quartet_scheduler_decisions_total",
			"Decisions about agents, by action, the rule behind it, and the tick that was offered.", "action", "reason",
			"tick"),
		failures: meter.Counter(reg, "quartet_scheduler_failures_total",
			"Evaluations of agents that failed and are repeated."),
		took: meter.Histogram(reg, "quartet_scheduler_look_seconds", "Duration of one evaluation of an agent.",
			meter.Calls).WithLabelValues(),
		marked: meter.Gauge(reg, "quartet_scheduler_marked_agents",
			"Agents that wait for an evaluation, by what marked them: an event or a sweep.", "cause"),
	}
}

// decided counts a verdict.
func (m *metrics) decided(v Verdict) {
	tick := ""
	if v.Action == ActionTick {
		tick = strings.ToLower(strings.TrimPrefix(v.Tick.String(), "TICK_REASON_"))
	}
	m.decisions.WithLabelValues(actionName(v.Action), v.Reason, tick).Inc()
}

// Sample sets the gauges of agents that are marked and not being evaluated.
func (s *Service) Sample(context.Context) {
	s.dirty.mu.Lock()
	named, swept := s.dirty.named.n, s.dirty.swept.n
	s.dirty.mu.Unlock()
	s.metrics.marked.WithLabelValues("event").Set(float64(named))
	s.metrics.marked.WithLabelValues("sweep").Set(float64(swept))
}
