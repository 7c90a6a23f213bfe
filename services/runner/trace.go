package runner

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// span starts the span of a call of the model, with the names and attributes of
// OpenTelemetry's conventions for generative AI. It contains no text of the conversation.
func (c *conversation) span(ctx context.Context) (context.Context, trace.Span) {
	cfg := c.r.cfg
	return cfg.Tracer.Under(ctx, c.t.Record.GetTraceparent(), "chat "+cfg.Model,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			attribute.String("gen_ai.operation.name", "chat"), attribute.String("gen_ai.provider.name", cfg.Provider),
			attribute.String("gen_ai.request.model", cfg.Model),
			attribute.String("quartet.agent_id", c.t.Record.GetAgentId()),
			attribute.String("quartet.turn_id", c.t.Record.GetTurnId())))
}

// endSpan ends a span with the tokens of the answer, if there is one. An error marks the span
// as failed; its text is not recorded.
func endSpan(span trace.Span, answer *Answer, err error) {
	if answer != nil {
		span.SetAttributes(attribute.Int64("gen_ai.usage.input_tokens", answer.InputTokens),
			attribute.Int64("gen_ai.usage.output_tokens", answer.OutputTokens))
	}
	if err != nil {
		span.SetStatus(codes.Error, "no reply")
	}
	span.End()
}
