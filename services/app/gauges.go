package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"quartet/pkg/meter"
	"quartet/pkg/rpc"
	"quartet/services/gateway"
)

// newRegistry returns the registry of this process's metrics, with those that every
// process has.
func newRegistry(version string) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	meter.Gauge(reg, "quartet_build_info", "Always 1; the labels are the versions of Quartet and Go.", "version",
		"goversion").WithLabelValues(version, runtime.Version()).Set(1)
	return reg
}

// samplePeriod is how often gauges that need a scan of a complete state are set. It is
// shorter than the usual scrape interval, and its cost does not depend on scrapes.
const samplePeriod = 10 * time.Second

// sampleTerm bounds each call of Sample, which may need a service that does not answer.
// Services are sampled one after the other.
const sampleTerm = 3 * time.Second

// sampled is a service with gauges that Sample sets.
type sampled interface{ Sample(ctx context.Context) }

// Sample sets the gauges of the units that this process holds, one unit after the other.
func (h *host) Sample(ctx context.Context) {
	h.mu.Lock()
	var held []sampled
	for _, u := range h.units {
		if s, ok := u.service.(sampled); ok {
			held = append(held, s)
		}
	}
	h.mu.Unlock()
	for _, s := range held {
		s.Sample(ctx)
	}
}

// gauges has the services whose gauges are set every samplePeriod.
type gauges struct {
	of       []sampled
	journals map[string][]journaled // the services with a journal, by plane
	stalled  *prometheus.GaugeVec
}

// newGauges registers the gauge of stalled journals with reg.
func newGauges(reg prometheus.Registerer) *gauges {
	return &gauges{
		journals: map[string][]journaled{},
		stalled: meter.Gauge(reg, "quartet_journal_stalled_seconds", "For how long a journal could not be written, "+
			"counted until now; 0 while it can.", "plane"),
	}
}

// sample sets all gauges once.
func (g *gauges) sample(ctx context.Context) {
	for plane, all := range g.journals {
		var most time.Duration
		for _, j := range all {
			most = max(most, j.Stalled())
		}
		g.stalled.WithLabelValues(plane).Set(most.Seconds())
	}
	for _, s := range g.of {
		term, cancel := context.WithTimeout(ctx, sampleTerm)
		s.Sample(term)
		cancel()
	}
}

// metricsPort is the module that serves metrics on a port of its own, for processes
// without a gateway and for networks in which Prometheus cannot reach the gateway.
type metricsPort struct {
	addr   string
	from   prometheus.Gatherer
	auth   rpc.Authenticator // nil: no credential is demanded
	server *http.Server
	bound  net.Listener
}

// Name returns the module's name.
func (m *metricsPort) Name() string { return "metrics" }

// Start listens and serves.
func (m *metricsPort) Start(ctx context.Context) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", m.addr)
	if err != nil {
		return fmt.Errorf("metrics-addr %s: %w", m.addr, err)
	}
	mux := http.NewServeMux()
	show := promhttp.HandlerFor(m.from, promhttp.HandlerOpts{})
	if m.auth != nil {
		show = gateway.Metered(m.auth, show)
	}
	mux.Handle("GET /metrics", show)
	m.bound, m.server = lis, &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout: 2 * time.Minute,
	}
	go func() { _ = m.server.Serve(lis) }() // ends with the server
	return nil
}

// Stop closes the port. Prometheus repeats a scrape that is cut off.
func (m *metricsPort) Stop(context.Context) error {
	if err := m.server.Close(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Ready implements life.Service.
func (m *metricsPort) Ready() error { return nil }

// MetricsAddr returns the address of the metrics port, "" if there is none.
func (a *App) MetricsAddr() string {
	if a.metrics == nil || a.metrics.bound == nil {
		return ""
	}
	return a.metrics.bound.Addr().String()
}
