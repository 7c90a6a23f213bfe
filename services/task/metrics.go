package task

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/meter"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/pbjson"
	"quartet/services/task/model"
	"quartet/services/task/rules"
)

// metrics count durable events. Sample sets the gauges.
type metrics struct {
	queued, ended, expired, restarted *prometheus.CounterVec
	waited, took                      *prometheus.HistogramVec

	waiting, running, workers, places *prometheus.GaugeVec
}

// newMetrics registers the metrics with reg; nil for a nil reg.
func newMetrics(reg prometheus.Registerer) *metrics {
	if reg == nil {
		return nil
	}
	return &metrics{
		queued: meter.Counter(reg, "quartet_tasks_queued_total", "Tasks created, by kind.", "kind"),
		ended: meter.Counter(reg, "quartet_tasks_ended_total", "Tasks that ended, by kind, state and reason.",
			"kind", "state", "reason"),
		expired: meter.Counter(reg, "quartet_command_leases_expired_total",
			"Leases of commands that expired: their worker sent no heartbeat, or came back without them."),
		restarted: meter.Counter(reg, "quartet_commands_restarted_total",
			"Commands that were started again because their worker was lost or stopped."),
		waited: meter.Histogram(reg, "quartet_command_wait_seconds", "Time from a command's queueing to its lease.",
			meter.Work),
		took: meter.Histogram(reg, "quartet_command_seconds", "Time from a command's lease to its end.",
			meter.Work, "state"),
		waiting: meter.Gauge(reg, "quartet_commands_queued", "Commands that wait for a worker, by pool.", "partition",
			"pool"),
		running: meter.Gauge(reg, "quartet_commands_running", "Commands that workers hold, by pool.", "partition",
			"pool"),
		workers: meter.Gauge(reg, "quartet_workers_connected", "Workers for commands that are connected, by pool; "+
			"one that serves several counts in each.", "pool"),
		places: meter.Gauge(reg, "quartet_worker_places",
			"Commands that connected workers can run at once, by pool.", "pool"),
	}
}

// count counts one event.
func (m *metrics) count(ev *journal.Event) {
	t := model.TaskOf(ev)
	if t == nil {
		return
	}
	kind := strings.ToLower(strings.TrimPrefix(t.GetKind().String(), "TASK_KIND_"))
	command := t.GetKind() == taskv1.TaskKind_TASK_KIND_COMMAND_TASK
	switch p := ev.Payload.(type) {
	case *taskv1.TaskQueued:
		m.queued.WithLabelValues(kind).Inc()
	case *taskv1.TaskStarted:
		if command {
			m.waited.WithLabelValues().Observe(between(t.GetCreatedAt(), t.GetStartedAt()))
		}
	case *taskv1.TaskRestarting:
		m.restarted.WithLabelValues().Inc()
		if p.GetReason() == rules.ReasonWorkerLost {
			m.expired.WithLabelValues().Inc()
		}
	case *taskv1.TaskCompleted, *taskv1.TaskFailed, *taskv1.TaskCancelled, *taskv1.TaskInterrupted:
		state := strings.ToLower(strings.TrimPrefix(t.GetState().String(), "TASK_STATE_"))
		m.ended.WithLabelValues(kind, state, pbjson.EnumText(t.GetEndReason())).Inc()
		if command && t.GetStartedAt() != nil {
			m.took.WithLabelValues(state).Observe(between(t.GetStartedAt(), t.GetEndedAt()))
		}
		if t.GetEndReason() == rules.ReasonWorkerLost {
			m.expired.WithLabelValues().Inc()
		}
	}
}

// between returns the seconds from one time to another, at least 0.
func between(from, to *timestamppb.Timestamp) float64 {
	return max(to.AsTime().Sub(from.AsTime()), 0).Seconds()
}

// maxPools bounds the pools with series of their own, since callers choose the names.
const (
	maxPools   = 32
	otherPools = "(others)"
	// maxCounted bounds the queues whose waiting commands are counted exactly.
	maxCounted = 10_000
)

// pools is a count for each pool, by the pool's name.
type pools map[string]int

// add adds n to a pool.
func (p pools) add(pool string, n int) { p[pool] += n }

// bounded returns the counts with at most maxPools pools under their names, the first by name,
// so that a pool keeps its series, and those of all others together under otherPools.
func (p pools) bounded() pools {
	if len(p) <= maxPools {
		return p
	}
	out := make(pools, maxPools+1)
	for i, pool := range slices.Sorted(maps.Keys(p)) {
		if i < maxPools {
			out[pool] = p[pool]
		} else {
			out[otherPools] += p[pool]
		}
	}
	return out
}

// forget removes the gauges of partitions that this process does not hold any more. It does
// nothing for nil metrics.
func (m *metrics) forget(parts []*journal.Partition[*model.State]) {
	if m == nil {
		return
	}
	for _, p := range parts {
		set(m.waiting, nil, strconv.Itoa(p.Index()))
		set(m.running, nil, strconv.Itoa(p.Index()))
	}
	m.workers.Reset()
	m.places.Reset()
}

// Sample sets the gauges from the queues and the connected workers. It does nothing before
// Start.
func (s *Service) Sample(ctx context.Context) {
	if s.metrics == nil || s.engine == nil {
		return
	}
	for _, p := range s.engine.All() {
		type found struct{ waiting, running pools }
		f, _, err := journal.View(ctx, p, func(st *model.State) (found, error) {
			f := found{pools{}, pools{}}
			for _, q := range st.Queues {
				n := len(q.Ids) // including those that were stopped while queued
				if n <= maxCounted {
					n = 0
					for _, id := range q.Ids {
						if model.AwaitsWorker(st.Items[id].Task) {
							n++
						}
					}
				}
				f.waiting.add(q.Placement.Pool, n)
			}
			for _, held := range st.Workers {
				for id := range held {
					f.running.add(model.PlacementOf("", st.Items[id].Task).Pool, 1)
				}
			}
			return f, nil
		})
		if err != nil {
			continue
		}
		partition := strconv.Itoa(p.Index())
		set(s.metrics.waiting, f.waiting, partition)
		set(s.metrics.running, f.running, partition)
	}
	workers, places := pools{}, pools{}
	for _, w := range s.workers.Slots() {
		served := w.Pools
		if len(served) == 0 {
			served = []string{model.DefaultPool}
		}
		for _, pool := range served {
			workers.add(pool, 1)
			places.add(pool, w.Capacity)
		}
	}
	set(s.metrics.workers, workers)
	set(s.metrics.places, places)
}

// set replaces the series of a gauge by the counts of pools, so that pools that are not used
// any more disappear. partition, if given, is the first label, and only the series of that
// partition are replaced.
func set(g *prometheus.GaugeVec, by pools, partition ...string) {
	if len(partition) > 0 {
		g.DeletePartialMatch(prometheus.Labels{"partition": partition[0]})
	} else {
		g.Reset()
	}
	for pool, n := range by.bounded() {
		g.WithLabelValues(append(partition[:len(partition):len(partition)], pool)...).Set(float64(n))
	}
}
