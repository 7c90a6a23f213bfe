package journal

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"quartet/pkg/tracing"
)

// startSpan starts the span of a command, which lasts from before it is queued until its frame is on disk. The
// command's events carry it, so that their effects elsewhere are its children. The span is nil if it is not recorded, which endSpan
// accepts.
func (p *Partition[S]) startSpan(ctx context.Context, c *command[S]) (context.Context, trace.Span) {
	ctx, span := p.cfg.Tracer.Start(ctx, "journal "+p.cfg.Plane, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		attribute.String("quartet.plane", p.cfg.Plane), attribute.Int("quartet.partition", p.cfg.Partition), attribute.String("quartet.command", c.method)))
	if !span.IsRecording() {
		return ctx, nil
	}
	c.traceparent = tracing.Carried(ctx)
	return ctx, span
}

// endSpan ends the span of a command.
func (p *Partition[S]) endSpan(span trace.Span, c *command[S]) {
	if span == nil {
		return
	}
	defer span.End()
	select {
	case <-c.done:
	default: // the caller stopped waiting; the loop may still write to c
		span.SetStatus(codes.Error, "outcome unknown")
		return
	}
	span.SetAttributes(attribute.Int("quartet.events", len(c.events)), attribute.Int64("quartet.wal_seq", int64(c.seq)), attribute.Bool("quartet.replayed", c.replayed))
	if c.err != nil {
		span.SetStatus(codes.Error, "refused")
	}
}

// startReactionSpan starts the span of a reaction to an event, as a child of the command that wrote the event,
// however much later. A reaction that produces no events records no span: its span is not ended.
func (p *Partition[S]) startReactionSpan(c *command[S], ev *Event) trace.Span {
	ctx, span := p.cfg.Tracer.Under(context.Background(), ev.Traceparent, p.cfg.Plane+" handles "+ev.Type,
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("quartet.plane", p.cfg.Plane), attribute.String("quartet.event_type", ev.Type), attribute.String("quartet.event_id", ev.ID),
			attribute.String("quartet.namespace", ev.Namespace), attribute.String("quartet.agent_id", ev.AgentID)))
	c.traceparent = tracing.Carried(ctx)
	return span
}
