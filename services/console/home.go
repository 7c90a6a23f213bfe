package console

import (
	"html"
	"io"
	"net/http"
	"strings"
)

// page is the start page. Home replaces {{.}} by the version, without html/template: that package calls
// methods by name, so that the linker would keep every method of every type, a third of the binary.
const page = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Quartet</title>
<style>body{font:16px/1.6 system-ui,sans-serif;max-width:46rem;margin:3rem auto;padding:0 1rem;color:#222;background:#fff}
code{background:#f2f2f2;padding:.1em .3em;border-radius:3px}td{padding:.15rem 1rem .15rem 0;vertical-align:top}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}code{background:#2a2a2a}a{color:#8ab4f8}}</style>
<h1>Quartet {{.}}</h1>
<p>A durable control plane for AI agents: who thinks, what is being achieved, what runs, and what everything waits for.</p>
<table>
<tr><td><a href="ui/"><code>/ui</code></a><td>the console: what the agents do, why, and what waits for a person
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

// Home responds with the start page for people.
func (c *Console) Home(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	// the client may have left
	_, _ = io.WriteString(w, strings.Replace(page, "{{.}}", html.EscapeString(c.deps.Version), 1))
}
