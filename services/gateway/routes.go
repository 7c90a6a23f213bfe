package gateway

import (
	"bytes"
	"errors"
	"html"
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"quartet/pkg/connlimit"
	"quartet/pkg/tracing"
)

// handler returns the handler of all paths. loopback says that the gateway listens on a loopback
// address.
func (g *Service) handler(loopback bool) (http.Handler, error) {
	api, err := g.api()
	if err != nil {
		return nil, err
	}
	known := http.NewServeMux()
	known.Handle("/v1/", g.authenticated(api))
	known.Handle("/v1/sessions/{session_id}/wal/{file}", only(http.MethodGet, g.authenticated(g.waiting(http.HandlerFunc(g.streamWAL)))))
	known.Handle("/v1/events", only(http.MethodGet, g.authenticated(http.HandlerFunc(g.streamEvents))))
	if g.deps.MCP != nil {
		known.Handle("/mcp/", g.authenticated(g.waiting(g.span(mcpPattern, true, g.bounded(g.deps.MCP(refuse)).ServeHTTP))))
	}
	rates := connlimit.NewRates(scarceRate, scarceBurst)
	known.Handle("/openapi.json", only(http.MethodGet, scarce(rates, http.HandlerFunc(g.openAPI))))
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
	// Links of web pages may lead to the start page, which tells nothing but the version.
	all.Handle("/{$}", g.hosts(loopback, only(http.MethodGet, http.HandlerFunc(g.home))))
	all.Handle("/", g.hosts(loopback, g.origins(known)))
	return g.counted(g.logged(arriving(secure(plain(all))))), nil
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

// secure sets the headers that every response has.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// logged logs the method and path of each request at debug level, without the query, the body and the
// token of a trigger.
func (g *Service) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if entry := g.deps.Logger.Check(zap.DebugLevel, "http"); entry != nil {
			path := r.URL.Path
			if strings.HasPrefix(path, triggerPath) {
				path = triggerPath + "…"
			}
			entry.Write(append(tracing.Fields(r.Context()), zap.String("method", r.Method), zap.String("path", path))...)
		}
	})
}

// healthz responds as long as the process runs.
func (g *Service) healthz(w http.ResponseWriter, _ *http.Request) {
	answerJSON(w, http.StatusOK, map[string]string{"status": "alive"})
}

// readyz responds with 200 if the process can serve, otherwise with 503 and the reasons. Journals that are damaged
// are named in both cases: the rest is served. So is a store that is filling up. With
// the parameter all it asks the other processes as well, and responds with 503 if a service of the installation is down.
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
		answerJSON(w, http.StatusServiceUnavailable, readiness{Reasons: strings.Split(err.Error(), "\n"), Damaged: damaged, Warning: warning})
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

// page is the start page, in which {{.}} stands for the version. It is no template:
// html/template calls methods by name, and the linker then keeps every method of every type
// in the binary, a third of its size.
const page = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Quartet</title>
<style>body{font:16px/1.6 system-ui,sans-serif;max-width:46rem;margin:3rem auto;padding:0 1rem;color:#222;background:#fff}
code{background:#f2f2f2;padding:.1em .3em;border-radius:3px}td{padding:.15rem 1rem .15rem 0;vertical-align:top}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}code{background:#2a2a2a}a{color:#8ab4f8}}</style>
<h1>Quartet {{.}}</h1>
<p>A durable control plane for AI agents: who thinks, what is being achieved, what runs, and what everything waits for.</p>
<table>
<tr><td><a href="/v1/agents"><code>GET /v1/agents</code></a><td>the agents; below each its work items, waits, tasks and messages
<tr><td><code>GET /v1/agents/{agent}:explain</code><td>why an agent does what it does, or nothing
<tr><td><a href="/v1/events?from_start=true&amp;stop_at_end=true"><code>GET /v1/events</code></a><td>what happened, as lines of JSON or as server-sent events
<tr><td><code>/mcp/{agent}</code><td>an agent's tools and plans over the Model Context Protocol
<tr><td><code>POST /v1/triggers/{token}</code><td>deliveries of outside systems
<tr><td><a href="/openapi.json"><code>/openapi.json</code></a><td>all of the REST API
<tr><td><a href="/readyz"><code>/readyz</code></a>, <a href="/healthz"><code>/healthz</code></a><td>probes
<tr><td><a href="/metrics"><code>/metrics</code></a><td>for Prometheus
<tr><td><a href="/version"><code>/version</code></a><td>what runs here
</table>
<p>On a terminal: <code>quartet --help</code>.</p>
</html>
`

// home responds with the start page for people.
func (g *Service) home(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	_, _ = io.WriteString(w, strings.Replace(page, "{{.}}", html.EscapeString(g.deps.Version), 1)) // the client may have left
}
