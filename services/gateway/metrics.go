package gateway

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"quartet/pkg/meter"
)

// registerer returns where metrics are counted; nil: they are not.
func (g *Service) registerer() prometheus.Registerer {
	if g.deps.Metrics == nil {
		return nil
	}
	return g.deps.Metrics
}

// counter returns a function that counts a request by HTTP method and status, and how long it took. It does not tell
// routes apart: the gRPC calls that these make are counted by gRPC method, as grpc_server_….
func (g *Service) counter() func(method string, code int, took time.Duration) {
	requests := meter.Counter(g.registerer(), "quartet_http_requests_total", "HTTP requests answered, by status.",
		"method", "code")
	seconds := meter.Histogram(g.registerer(), "quartet_http_request_seconds", "Time from an HTTP request to the end "+
		"of its response, also of event streams.", meter.Calls, "method")
	return func(method string, code int, took time.Duration) {
		method = knownMethod(method)
		requests.WithLabelValues(method, strconv.Itoa(code)).Inc()
		seconds.WithLabelValues(method).Observe(took.Seconds())
	}
}

// knownMethod returns a method of HTTP, and "other" for any other text, so that callers
// cannot create labels.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions:
		return method
	}
	return "other"
}
