package gateway

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"quartet/pkg/meter"
)

// counted counts the requests that next serves, by HTTP method and status, and measures how long they take. It does
// not tell routes apart: the gRPC calls that these make are counted by gRPC method, as grpc_server_….
func (g *Service) counted(next http.Handler) http.Handler {
	if g.deps.Metrics == nil {
		return next
	}
	var reg prometheus.Registerer = g.deps.Metrics
	requests := meter.Counter(reg, "quartet_http_requests_total", "HTTP requests answered, by status.", "method",
		"code")
	seconds := meter.Histogram(reg, "quartet_http_request_seconds", "Time from an HTTP request to the end of its "+
		"response, also of event streams.", meter.Calls, "method")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		seen := &answered{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(seen, r)
		method := knownMethod(r.Method)
		requests.WithLabelValues(method, strconv.Itoa(seen.code)).Inc()
		seconds.WithLabelValues(method).Observe(time.Since(began).Seconds())
	})
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

// answered is a ResponseWriter that records the status of the response in code, 200 if the handler
// sets none.
type answered struct {
	http.ResponseWriter
	code  int
	wrote bool // the status is determined; an informational one does not count
}

// WriteHeader implements http.ResponseWriter.
func (s *answered) WriteHeader(code int) {
	if !s.wrote {
		s.code, s.wrote = code, code >= http.StatusOK
	}
	s.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (s *answered) Write(b []byte) (int, error) {
	s.wrote = true
	return s.ResponseWriter.Write(b)
}

// Flush implements http.Flusher, which streams need.
func (s *answered) Flush() { _ = http.NewResponseController(s.ResponseWriter).Flush() }

// Unwrap lets http.ResponseController reach the original writer.
func (s *answered) Unwrap() http.ResponseWriter { return s.ResponseWriter }
