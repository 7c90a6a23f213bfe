// Package meter registers Prometheus metrics. Several partitions or servers of a process
// share a metric: for a name that is registered already, its functions return the existing metric, and
// panic if that has another type or other labels. With a nil Registerer they return a metric that
// is not registered. docs/metrics.md lists all metrics.
package meter

import "github.com/prometheus/client_golang/prometheus"

// The buckets of histograms, by what is measured.
var (
	// Calls are the durations of calls, from an in-memory read to a long poll, in seconds.
	Calls = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	// Disk are the durations of writes, from a fast disk to a failing one, in seconds.
	Disk = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30}
	// Work are the durations of turns and commands, in seconds.
	Work = []float64{
		.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600,
		24 * 3600,
	}
	// Bytes are sizes, from one line of a journal to the largest frame.
	Bytes = prometheus.ExponentialBuckets(256, 4, 9)
	// Many are counts, from one to the commands of a full frame.
	Many = prometheus.ExponentialBuckets(1, 2, 14)
)

// Counter returns the counter with a name. A counter without labels is exported as 0 from now on.
func Counter(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	c := shared(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
	if len(labels) == 0 {
		c.WithLabelValues() // exports 0, so that a rate includes the first increment
	}
	return c
}

// Gauge returns the gauge with a name.
func Gauge(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.GaugeVec {
	return shared(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

// Histogram returns the histogram with a name.
func Histogram(reg prometheus.Registerer, name, help string, buckets []float64,
	labels ...string,
) *prometheus.HistogramVec {
	return shared(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets},
		labels))
}

// shared registers c, or returns the collector that is registered under its name. With a nil
// registry it returns c unregistered.
func shared[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	err := reg.Register(c)
	if err == nil {
		return c
	}
	if are, ok := err.(prometheus.AlreadyRegisteredError); ok { //nolint:errorlint // Register returns it bare
		if first, ok := are.ExistingCollector.(C); ok {
			return first
		}
	}
	panic("meter: " + err.Error()) // another metric has the name, which is a programming error
}
