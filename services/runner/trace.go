package runner

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// span is the model's part of a round, named and described as OpenTelemetry's
// conventions for generative AI have it. What was said is no part of it.
func (c *conversation) span(ctx context.Context) (context.Context, trace.Span) {
	cfg := c.r.cfg
	return cfg.Tracer.Under(ctx, c.t.Record.GetTraceparent(), "chat "+cfg.Model, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("gen_ai.operation.name", "chat"), attribute.String("gen_ai.provider.name", cfg.Provider), attribute.String("gen_ai.request.model", cfg.Model),
		attribute.String("quartet.agent_id", c.t.Record.GetAgentId()), attribute.String("quartet.turn_id", c.t.Record.GetTurnId())))
}

func told(span trace.Span, said *Answer, err error) {
	if said != nil {
		span.SetAttributes(attribute.Int64("gen_ai.usage.input_tokens", said.InputTokens), attribute.Int64("gen_ai.usage.output_tokens", said.OutputTokens))
	}
	if err != nil {
		span.SetStatus(codes.Error, "no reply")
	}
	span.End()
}
