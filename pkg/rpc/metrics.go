package rpc

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"quartet/pkg/meter"
)

// meters holds the metrics of calls, with the names of gRPC's own middleware. Each method
// has its own children of the metrics, because finding them by label costs more than
// counting.
type meters struct {
	reg      prometheus.Registerer // may be nil
	started  *prometheus.CounterVec
	handled  *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	methods  sync.Map // full method -> *method
}

func newMeters(reg prometheus.Registerer) *meters {
	return &meters{
		reg: reg,
		started: meter.Counter(reg, "grpc_server_started_total", "Calls started.", "grpc_type", "grpc_service",
			"grpc_method"),
		handled: meter.Counter(reg, "grpc_server_handled_total", "Calls answered, by gRPC code.", "grpc_type",
			"grpc_service", "grpc_method", "grpc_code"),
		seconds: meter.Histogram(reg, "grpc_server_handling_seconds",
			"Time from the request to its answer, for a stream to its end.", meter.Calls, "grpc_type", "grpc_service",
			"grpc_method"),
		refusals: meter.Counter(reg, "quartet_refusals_total", "Calls that ended with an error, by reason "+
			"(docs/errors.md).", "reason"),
	}
}

type method struct {
	full, kind, service, name string
	meters                    *meters
	started                   prometheus.Counter
	seconds                   prometheus.Observer
	codes                     [codes.Unauthenticated + 1]atomic.Pointer[prometheus.Counter]
}

// kindOf returns a stream's grpc_type.
func kindOf(info *grpc.StreamServerInfo) string {
	switch {
	case info.IsClientStream && info.IsServerStream:
		return "bidi_stream"
	case info.IsClientStream:
		return "client_stream"
	}
	return "server_stream"
}

// method returns the metrics of a method, and makes them at its first call.
func (m *meters) method(full, kind string) *method {
	if known, ok := m.methods.Load(full); ok {
		return known.(*method)
	}
	service, name, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	made := &method{
		full: full, kind: kind, service: service, name: name, meters: m,
		started: m.started.WithLabelValues(kind, service, name), seconds: m.seconds.WithLabelValues(kind, service,
			name),
	}
	known, _ := m.methods.LoadOrStore(full, made)
	return known.(*method)
}

// observe counts a call that has ended. A code that gRPC does not define counts as UNKNOWN.
func (m *method) observe(code codes.Code, took time.Duration) {
	if int(code) >= len(m.codes) {
		code = codes.Unknown
	}
	slot := &m.codes[code]
	counter := slot.Load()
	if counter == nil {
		c := m.meters.handled.WithLabelValues(m.kind, m.service, m.name, code.String())
		counter = &c
		slot.Store(counter)
	}
	(*counter).Inc()
	m.seconds.Observe(took.Seconds())
}
