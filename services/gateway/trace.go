package gateway

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"quartet/pkg/tracing"
)

// span returns next with a span for each request: in the caller's trace if the caller sent one,
// otherwise in a new trace if begins is set, otherwise without a span. The span is named by pattern
// and not by the path, which may contain the token of a trigger.
func (g *Service) span(pattern string, begins bool, next http.HandlerFunc) http.HandlerFunc {
	if !g.deps.Tracer.On() {
		return next
	}
	return func(w http.ResponseWriter, r *http.Request) {
		parent := r.Header.Get(tracing.Header)
		if parent == "" && (!begins || r.Method == http.MethodGet && pattern == mcpPattern) {
			next(w, r)
			return
		}
		ctx, span := g.deps.Tracer.Begin(tracing.Continue(r.Context(), parent), r.Method+" "+pattern,
			trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", r.Method),
				attribute.String("http.route", pattern)))
		defer span.End()
		if !span.IsRecording() {
			next(w, r.WithContext(ctx))
			return
		}
		next(w, r.WithContext(ctx))
		seen := w.(*response) //nolint:forcetypeassert // of arriving, which every request passes first
		span.SetAttributes(attribute.Int("http.response.status_code", seen.code))
		if seen.code >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(seen.code))
		}
	}
}

// mcpPattern is the path of an agent's tools, as spans name it. A GET of it is a stream.
const mcpPattern = "/mcp/{agent_id}"
