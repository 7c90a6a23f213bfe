package journal

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"quartet/pkg/journal/event"
	"quartet/pkg/tracing"
)

// beginSpan starts the span of a command, which lasts from before it is queued until its frame is on disk. The
// command's events carry traceparent, so that their effects elsewhere are its children. The span is nil if it is not
// recorded.
func beginSpan(ctx context.Context, t *tracing.Tracer, plane string, partition int, method string) (_ context.Context,
	span trace.Span, traceparent string,
) {
	ctx, span = t.Start(ctx, "journal "+plane, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		attribute.String("quartet.plane", plane), attribute.Int("quartet.partition", partition),
		attribute.String("quartet.command", method)))
	if !span.IsRecording() {
		return ctx, nil, ""
	}
	return ctx, span, tracing.Carried(ctx)
}

// unknownSpan ends the span of a command whose caller stopped waiting for the outcome.
func unknownSpan(span trace.Span) {
	span.SetStatus(codes.Error, "outcome unknown")
	span.End()
}

// endSpan ends the span of a command: events is how many it wrote, walSeq that of the last one.
func endSpan(span trace.Span, events int, walSeq uint64, replayed, refused bool) {
	span.SetAttributes(attribute.Int("quartet.events", events), attribute.Int64("quartet.wal_seq", int64(walSeq)),
		attribute.Bool("quartet.replayed", replayed))
	if refused {
		span.SetStatus(codes.Error, "refused")
	}
	span.End()
}

// reactionSpan starts the span of a reaction to an event, as a child of the span of the command that wrote the
// event, which may have ended long ago. The caller must end the span only if the reaction produces events; a
// span that is not ended is not recorded. These events carry traceparent, which is "" if the trace is not sampled.
func reactionSpan(t *tracing.Tracer, plane string, ev *event.Event) (span trace.Span, traceparent string) {
	ctx, span := t.Under(context.Background(), ev.Traceparent, plane+" handles "+ev.Type,
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("quartet.plane", plane), attribute.String("quartet.event_type", ev.Type),
			attribute.String("quartet.event_id", ev.ID),
			attribute.String("quartet.namespace", ev.Namespace), attribute.String("quartet.agent_id", ev.AgentID)))
	return span, tracing.Carried(ctx)
}
