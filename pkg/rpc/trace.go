package rpc

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/fault"
	"quartet/pkg/tracing"
)

// These interfaces select the fields of a request that become attributes of its span: the ids
// of the records that it is about. Other fields do not, because they may be secret or long.
type (
	aboutAgent interface{ GetAgentId() string }
	aboutItem  interface{ GetWorkItemId() string }
	aboutTask  interface{ GetTaskId() string }
	aboutBoard interface{ GetSessionId() string }
)

// maxAttribute bounds an attribute, in bytes. The request is not validated yet, so a longer value
// is not an id.
const maxAttribute = fault.MaxNameChars

// traced starts the span of a unary call, and returns ctx and nil if it is not recorded. Calls between services start
// no trace, because a request from outside has one already.
func (s *server) traced(ctx context.Context, m *method, req any, start time.Time) (context.Context, trace.Span) {
	parent := incoming(ctx)
	if parent == "" && (Via(ctx) != "" || s.cfg.Quiet[m.full]) {
		return ctx, nil
	}
	ctx, span := s.cfg.Tracer.Begin(tracing.Continue(ctx, parent), m.name, s.opening(ctx, m, start)...)
	if !span.IsRecording() {
		return ctx, nil
	}
	note := func(key, value string) {
		if value != "" && len(value) <= maxAttribute {
			span.SetAttributes(attribute.String(key, value))
		}
	}
	if r, ok := req.(aboutAgent); ok {
		note("quartet.agent_id", r.GetAgentId())
	}
	if r, ok := req.(aboutItem); ok {
		note("quartet.work_item_id", r.GetWorkItemId())
	}
	if r, ok := req.(aboutTask); ok {
		note("quartet.task_id", r.GetTaskId())
	}
	if r, ok := req.(aboutBoard); ok {
		note("quartet.session_id", r.GetSessionId())
	}
	return ctx, span
}

// continued begins the span of a stream if its caller sent a traceparent, and otherwise returns ctx and nil: a stream
// may last indefinitely, so a trace of its own would say nothing.
func (s *server) continued(ctx context.Context, m *method, start time.Time) (context.Context, trace.Span) {
	parent := incoming(ctx)
	if parent == "" {
		return ctx, nil
	}
	ctx, span := s.cfg.Tracer.Start(tracing.Continue(ctx, parent), m.name, s.opening(ctx, m, start)...)
	return ctx, span
}

// opening returns the options of the span of a call that began at start.
func (s *server) opening(ctx context.Context, m *method, start time.Time) []trace.SpanStartOption {
	a := ActorFrom(ctx)
	return []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start), trace.WithAttributes(
			attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", m.service),
			attribute.String("rpc.method", m.name),
			attribute.String("quartet.namespace", a.Namespace), attribute.String("quartet.role", a.Role)),
	}
}

// endSpan ends a span with the outcome of its call, whose code and reason become attributes. The status of the span is
// an error only for errors of the server; it stays unset for refusals that the caller has caused. err is nil or a
// fault.
func endSpan(span trace.Span, err error) {
	code := codes.OK
	if err != nil {
		e := fault.From(err)
		code = e.Code()
		span.SetAttributes(attribute.String("quartet.reason", string(e.Reason())))
		switch code { // the errors of the server, by OpenTelemetry's conventions for gRPC
		case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable,
			codes.DataLoss:
			span.SetStatus(otelcodes.Error, string(e.Reason()))
		}
	}
	span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(code)))
	span.End()
}

// incoming returns the traceparent that the caller sent.
func incoming(ctx context.Context) string {
	if v := metadata.ValueFromIncomingContext(ctx, tracing.Header); len(v) > 0 {
		return v[0]
	}
	return ""
}
