package rpc

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// meter hands out the metric children of a method. Looking them up by label
// costs more than counting, so each method keeps its own.
type meter struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	methods  sync.Map // full method -> *method
}

func newMeter(reg prometheus.Registerer) *meter {
	m := &meter{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_rpc_requests_total", Help: "Calls answered, by gRPC code.",
		}, []string{"service", "method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "quartet_rpc_seconds", Help: "Time from the request to its answer; streams until they end.",
			// From one in-memory answer to a long poll.
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"service", "method"}),
	}
	if reg != nil {
		m.requests = shared(reg, m.requests)
		m.seconds = shared(reg, m.seconds)
	}
	return m
}

// shared registers c, or gives the one that another server registered before.
func shared[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	err := reg.Register(c)
	if err == nil {
		return c
	}
	if are, ok := err.(prometheus.AlreadyRegisteredError); ok { //nolint:errorlint // Register returns it bare
		if first, ok := are.ExistingCollector.(C); ok {
			return first
		}
	}
	panic("rpc: " + err.Error()) // a foreign metric of this name: a mistake of wiring
}

type method struct {
	full, service, name string
	meter               *meter
	seconds             prometheus.Observer
	codes               [codes.Unauthenticated + 1]atomic.Pointer[prometheus.Counter]
}

func (m *meter) method(full string) *method {
	if known, ok := m.methods.Load(full); ok {
		return known.(*method)
	}
	service, name, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	made := &method{full: full, service: service, name: name, meter: m, seconds: m.seconds.WithLabelValues(service, name)}
	known, _ := m.methods.LoadOrStore(full, made)
	return known.(*method)
}

func (m *method) observe(code codes.Code, took time.Duration) {
	if int(code) >= len(m.codes) {
		code = codes.Unknown
	}
	slot := &m.codes[code]
	counter := slot.Load()
	if counter == nil {
		c := m.meter.requests.WithLabelValues(m.service, m.name, code.String())
		counter = &c
		slot.Store(counter)
	}
	(*counter).Inc()
	m.seconds.Observe(took.Seconds())
}
