package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"quartet/pkg/connlimit"
)

// handler returns the handler of all paths.
func (g *Service) handler() (http.Handler, error) {
	api, err := g.api()
	if err != nil {
		return nil, err
	}
	known := http.NewServeMux()
	known.Handle("/v1/", g.authenticated(api))
	known.Handle("/v1/sessions/{session_id}/wal/{file}",
		only(http.MethodGet, g.authenticated(g.waiting(http.HandlerFunc(g.streamWAL)))))
	known.Handle("/v1/events", only(http.MethodGet, g.authenticated(http.HandlerFunc(g.streamEvents))))
	if g.deps.MCP != nil {
		tools, err := g.deps.MCP(g.conn, refuse)
		if err != nil {
			return nil, err
		}
		known.Handle("/mcp/", g.authenticated(g.waiting(g.span(mcpPattern, true, g.bounded(tools).ServeHTTP))))
	}
	rates := connlimit.NewRates(scarceRate, scarceBurst)
	known.Handle("/openapi.json", only(http.MethodGet, scarce(rates, http.HandlerFunc(g.openAPI))))
	known.Handle("/llms.txt",
		only(http.MethodGet,
			scarce(rates, llmsHandler(llmsParts{MCP: g.deps.MCP != nil, Console: g.deps.Console != nil}))))
	known.Handle("/version", only(http.MethodGet, http.HandlerFunc(g.version)))
	known.Handle("/metrics", only(http.MethodGet, scarce(rates, g.metrics())))
	known.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { unrouted(w, r, http.StatusNotFound) })

	// Probes and outside systems may use any host name.
	all := http.NewServeMux()
	all.Handle("/healthz", only(http.MethodGet, http.HandlerFunc(g.healthz)))
	all.Handle("/readyz", only(http.MethodGet, http.HandlerFunc(g.readyz)))
	deliver, err := g.deliveries()
	if err != nil {
		return nil, err
	}
	all.Handle(triggerPath+"{token}", only(http.MethodPost, g.span(triggerPath+"{token}", true, deliver.ServeHTTP)))
	if g.deps.Console != nil {
		g.console(all)
	}
	all.Handle("/", g.origins(known))
	return g.arriving(all), nil
}

// bounded reads the body, within its limits of size and time, before it calls next. It is
// for handlers that have no such limits.
func (g *Service) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := readBody(w, r, g.cfg.MaxBody)
		if err != nil {
			refuse(w, r, err)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// only refuses other methods than method, but accepts HEAD with GET. The refusal has the form of the
// API's errors, which that of ServeMux has not.
func only(method string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			unrouted(w, r, http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// healthz responds as long as the process runs.
func (g *Service) healthz(w http.ResponseWriter, _ *http.Request) {
	answerJSON(w, http.StatusOK, map[string]string{"status": "alive"})
}

// readyz responds with 200 if the process can serve, otherwise with 503 and the reasons. Journals that are damaged
// are named in both cases: the rest is served. So is a store that is filling up. With
// the parameter all it asks the other processes as well, and responds with 503 if a service of the installation is
// down.
func (g *Service) readyz(w http.ResponseWriter, r *http.Request) {
	type readiness struct {
		Ready   bool     `json:"ready"`
		Reasons []string `json:"reasons,omitempty"`
		Damaged []string `json:"damaged,omitempty"`
		Warning string   `json:"warning,omitempty"`
	}
	var damaged []string
	if g.deps.Damage != nil {
		for _, err := range g.deps.Damage() {
			damaged = append(damaged, err.Error())
		}
	}
	warning := ""
	if g.deps.Warning != nil {
		warning = g.deps.Warning()
	}
	err := g.deps.Ready()
	if g.stopping.Load() {
		err = errStopping
	}
	if err == nil && r.URL.Query().Has("all") && g.deps.Down != nil {
		if down := g.deps.Down(r.Context()); len(down) > 0 {
			err = errors.New(strings.Join(down, "\n"))
		}
	}
	if err != nil {
		w.Header().Set("Retry-After", "1")
		answerJSON(w, http.StatusServiceUnavailable, readiness{
			Reasons: strings.Split(err.Error(), "\n"),
			Damaged: damaged, Warning: warning,
		})
		return
	}
	answerJSON(w, http.StatusOK, readiness{Ready: true, Damaged: damaged, Warning: warning})
}

// version responds with the version of the build.
func (g *Service) version(w http.ResponseWriter, _ *http.Request) {
	answerJSON(w, http.StatusOK, map[string]string{"version": g.deps.Version})
}

// openAPI responds with the OpenAPI document.
func (g *Service) openAPI(w http.ResponseWriter, r *http.Request) {
	if len(g.deps.OpenAPI) == 0 {
		unrouted(w, r, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(g.deps.OpenAPI)
}

// metrics returns the handler that shows the metrics to Prometheus.
func (g *Service) metrics() http.Handler {
	from := g.deps.Metrics
	if from == nil {
		from = prometheus.NewRegistry()
	}
	show := promhttp.HandlerFor(from, promhttp.HandlerOpts{})
	if g.cfg.MetricsAuth {
		return Metered(g.deps.Auth, show)
	}
	return show
}
