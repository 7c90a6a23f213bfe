package task

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/rules"
)

// Callers choose the names of pools, so that not all of them have series. Those that have one
// do not depend on the order in which they were counted.
func TestPoolsAreBounded(t *testing.T) {
	p := pools{}
	for i := range maxPools {
		p.add(fmt.Sprintf("pool%02d", i), 1)
	}
	require.Equal(t, p, p.bounded())
	p.add("z", 2)
	p.add("x", 3)
	p.add("pool00", 1)
	b := p.bounded()
	require.Len(t, b, maxPools+1)
	require.Equal(t, 5, b[otherPools])
	require.Equal(t, 2, b["pool00"])
	require.Equal(t, 1, b["pool31"])
	p.add("a", 4)
	b = p.bounded()
	require.Equal(t, 4, b["a"])
	require.NotContains(t, b, "pool31")
	require.Equal(t, 6, b[otherPools])
}

// A command is restarted because its worker was lost or because it stopped; a lease expires in the first case only.
func TestExpiredLeasesAreOfLostWorkers(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	for _, reason := range []taskv1.TaskEndReason{
		rules.ReasonWorkerLost, rules.ReasonWorkerStopped,
		rules.ReasonWorkerLost,
	} {
		m.count(&journal.Event{
			Payload: &taskv1.TaskRestarting{
				Task:   &taskv1.Task{Kind: taskv1.TaskKind_TASK_KIND_COMMAND_TASK},
				Reason: reason,
			},
		})
	}
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			got[f.GetName()] += metric.GetCounter().GetValue()
		}
	}
	require.EqualValues(t, 3, got["quartet_commands_restarted_total"])
	require.EqualValues(t, 2, got["quartet_command_leases_expired_total"])
}
