package agent

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/tracing"
)

// A turn is part of its message's trace, and its span lasts from the frame that
// starts it to the frame that ends it, over however many calls and restarts: the
// record holds its id, and it is told of at the end.

// tracedTurns is how many of an agent's newest turns are looked at for the trace
// of a message.
const tracedTurns = 16

// tracedBefore says whether a turn about another message was part of a message's
// trace: then this turn follows from that one, and begins a trace of its own that
// links to it. An agent that goes on for months would have one trace otherwise.
func (a *agentState) tracedBefore(m *agentv1.Message) bool {
	if m.GetTraceparent() == "" {
		return false
	}
	for _, t := range a.turns[max(0, len(a.turns)-tracedTurns):] {
		if t.rec.GetMessageId() != m.GetMessageId() && tracing.SameTrace(t.rec.GetTraceparent(), m.GetTraceparent()) {
			return true
		}
	}
	return false
}

// within is a call's part of its turn: below the call where its caller sent the
// turn's trace, else below the turn itself, linked to the call.
func (s *Service) within(ctx context.Context, k key, turnID, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	if !s.deps.Tracer.On() {
		return s.deps.Tracer.Start(ctx, name)
	}
	turn, _, err := plane.View(ctx, s.engine, k.ID, func(st *State) (string, error) {
		if a := st.lookup(k); a != nil {
			if t := a.find(turnID); t != nil {
				return t.rec.GetTraceparent(), nil
			}
		}
		return "", nil
	})
	attrs = append(attrs, attribute.String("quartet.agent_id", k.ID), attribute.String("quartet.turn_id", turnID))
	call := tracing.Carried(ctx)
	if err != nil || turn == "" || tracing.SameTrace(call, turn) {
		return s.deps.Tracer.Start(ctx, name, trace.WithAttributes(attrs...))
	}
	return s.deps.Tracer.Under(ctx, turn, name, trace.WithAttributes(attrs...), tracing.LinkTo(call))
}

// toolSpan is a tool's call, named as OpenTelemetry's conventions for generative
// AI have it. Arguments and results are no part of it.
func (s *Service) toolSpan(ctx context.Context, t tool, c *agentv1.ToolCall) (context.Context, trace.Span) {
	if !s.deps.Tracer.On() {
		return s.deps.Tracer.Start(ctx, "")
	}
	return s.deps.Tracer.Start(ctx, "execute_tool "+t.name, trace.WithAttributes(
		attribute.String("gen_ai.operation.name", "execute_tool"), attribute.String("gen_ai.tool.name", t.name), attribute.String("gen_ai.tool.call.id", c.GetCallId()),
		attribute.String("quartet.plane", t.plane)))
}

func endTool(span trace.Span, r *agentv1.ToolResult) {
	if span.IsRecording() && r.GetStatus() == statusError {
		span.SetAttributes(attribute.String("error.type", r.GetError().GetKind()))
		span.SetStatus(codes.Error, r.GetError().GetKind())
	}
	span.End()
}

// tellTurn tells of a turn that ended. events are those of its frame, among them
// what became of its message.
func (s *Service) tellTurn(ev *journal.Event, events []*journal.Event) {
	t := endedTurn([]*journal.Event{ev})
	if t.GetTraceparent() == "" {
		return
	}
	parent, kind := "", ""
	for _, other := range events {
		p, ok := other.Payload.(interface{ GetMessage() *agentv1.Message })
		if ok && p.GetMessage().GetMessageId() == t.GetMessageId() && other.AgentID == ev.AgentID {
			parent, kind = p.GetMessage().GetTraceparent(), lower(p.GetMessage().GetKind().String(), "MESSAGE_KIND_")
		}
	}
	failed := ""
	if t.GetState() != agentv1.TurnState_TURN_STATE_COMPLETED {
		failed = t.GetEndReason()
	}
	s.deps.Tracer.Told(t.GetTraceparent(), parent, "turn", t.GetStartedAt().AsTime(), t.GetEndedAt().AsTime(), failed,
		attribute.String("quartet.namespace", ev.Namespace), attribute.String("quartet.agent_id", t.GetAgentId()), attribute.String("quartet.turn_id", t.GetTurnId()),
		attribute.String("quartet.message_id", t.GetMessageId()), attribute.String("quartet.message_kind", kind),
		attribute.String("quartet.work_item_id", t.GetWorkItemId()), attribute.String("quartet.end_reason", t.GetEndReason()), attribute.Int("quartet.rounds", int(t.GetRounds())))
}
