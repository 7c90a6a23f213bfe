package meter_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"quartet/pkg/meter"
)

// Whoever asks for a metric that is there gets that one; another of its name is a
// mistake of wiring.
func TestAMetricIsThereOnce(t *testing.T) {
	reg := prometheus.NewRegistry()
	meter.Counter(reg, "a_total", "A.", "x").WithLabelValues("1").Inc()
	meter.Counter(reg, "a_total", "A.", "x").WithLabelValues("1").Inc()
	meter.Counter(reg, "b_total", "B.")
	families, err := reg.Gather()
	require.NoError(t, err)
	require.Len(t, families, 2, "a counter without labels is there from the start")
	require.InDelta(t, 2, families[0].GetMetric()[0].GetCounter().GetValue(), 0)
	require.InDelta(t, 0, families[1].GetMetric()[0].GetCounter().GetValue(), 0)
	require.Panics(t, func() { meter.Gauge(reg, "a_total", "A.", "x") })
	meter.Histogram(nil, "c_seconds", "C.", meter.Calls).WithLabelValues().Observe(1) // nobody sees it
}
