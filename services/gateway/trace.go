package gateway

import (
	"context"
	"net/http"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"quartet/pkg/tracing"
)

// traced makes a request a span: of the caller's trace, if the caller sent one, else
// of one that begins here. Its name is the route's pattern, never the path: a path
// may hold the token of a trigger.
func (g *Service) traced(next http.Handler) http.Handler {
	if !g.deps.Tracer.On() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, begins := named(r)
		parent := r.Header.Get(tracing.Header)
		if name == "" || parent == "" && !begins {
			next.ServeHTTP(w, r)
			return
		}
		ctx, span := g.deps.Tracer.Begin(tracing.Continue(r.Context(), parent), r.Method+" "+name, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", r.Method), attribute.String("http.route", name)))
		defer span.End()
		if !span.IsRecording() {
			next.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		ctx = context.WithValue(ctx, methodKey{}, r.Method)
		seen := &answered{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(seen, r.WithContext(ctx))
		span.SetAttributes(attribute.Int("http.response.status_code", seen.code))
		if seen.code >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(seen.code))
		}
	})
}

// named is what a request's span is called until its route is known; "" for what
// is not worth one. begins says whether it may begin a trace: streams and long
// polls wait rather than do something.
func named(r *http.Request) (name string, begins bool) {
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, triggerPath):
		return triggerPath + "{token}", true
	case strings.HasPrefix(path, "/mcp/"):
		return "/mcp/{agent_id}", r.Method == http.MethodPost
	case path == "/v1/events", path == "/v1/turns:acquire", strings.HasSuffix(path, ":follow"), strings.Contains(path, "/wal/"):
		return "/v1", false
	case strings.HasPrefix(path, "/v1/"):
		return "/v1", true
	}
	return "", false
}

// route names the span of a request by its pattern, once that is known.
func route(ctx context.Context) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	if pattern, ok := runtime.HTTPPathPattern(ctx); ok {
		if method, ok := ctx.Value(methodKey{}).(string); ok {
			span.SetName(method + " " + pattern)
		}
		span.SetAttributes(attribute.String("http.route", pattern))
	}
}

// methodKey is of the request's method, in the contexts of traced requests.
type methodKey struct{}
