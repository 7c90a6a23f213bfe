package board

import (
	"github.com/prometheus/client_golang/prometheus"

	"quartet/pkg/journal"
	"quartet/pkg/meter"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// metrics count durable events.
type metrics struct{ boards, claimed, completed, failed, expired *prometheus.CounterVec }

// newMetrics registers the metrics with reg; nil for a nil reg.
func newMetrics(reg prometheus.Registerer) *metrics {
	if reg == nil {
		return nil
	}
	return &metrics{
		boards:    meter.Counter(reg, "quartet_boards_created_total", "Boards created."),
		claimed:   meter.Counter(reg, "quartet_steps_claimed_total", "Steps of boards that workers claimed."),
		completed: meter.Counter(reg, "quartet_steps_completed_total", "Steps of boards that were completed."),
		failed:    meter.Counter(reg, "quartet_steps_failed_total", "Steps of boards that failed."),
		expired: meter.Counter(reg, "quartet_step_leases_expired_total",
			"Leases of steps that expired: their worker sent no heartbeat."),
	}
}

// count counts one event.
func (m *metrics) count(ev *journal.Event) {
	switch ev.Payload.(type) {
	case *boardv1.TaskCreated:
		m.boards.WithLabelValues().Inc()
	case *boardv1.TaskStepClaimed:
		m.claimed.WithLabelValues().Inc()
	case *boardv1.TaskStepCompleted:
		m.completed.WithLabelValues().Inc()
	case *boardv1.TaskStepFailed:
		m.failed.WithLabelValues().Inc()
	case *boardv1.TaskStepLeaseExpired:
		m.expired.WithLabelValues().Inc()
	}
}
