// Package meter makes Prometheus metrics. A process may have several partitions
// of a plane, and several servers: whoever asks for a metric that is there gets
// that one. docs/metrics.md has all of them.
package meter

import "github.com/prometheus/client_golang/prometheus"

// Buckets of histograms, by what they measure.
var (
	// Calls are from one in-memory answer to a long poll, in seconds.
	Calls = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	// Disk is what a write takes, from a fast disk to one in trouble, in seconds.
	Disk = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30}
	// Work is what turns and commands take and wait for, in seconds.
	Work = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}
	// Bytes are from one line of a journal to the largest frame.
	Bytes = prometheus.ExponentialBuckets(256, 4, 9)
	// Many are from one to a full frame.
	Many = prometheus.ExponentialBuckets(1, 2, 14)
)

// Counter is the counter of that name.
func Counter(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	c := shared(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
	if len(labels) == 0 {
		c.WithLabelValues() // 0 is something else than nothing: a rate begins there
	}
	return c
}

// Gauge is the gauge of that name.
func Gauge(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.GaugeVec {
	return shared(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

// Histogram is the histogram of that name.
func Histogram(reg prometheus.Registerer, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return shared(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels))
}

// shared registers c, or gives the one that was registered before. A nil registry
// makes metrics that nobody sees.
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
	panic("meter: " + err.Error()) // another metric has the name: a mistake of wiring
}
