package turns

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/pkg/tracing"
	"quartet/services/agent/state"
)

// startSpan starts the span of a call about a turn: as a child of the call's span if the caller
// sent the turn's trace, else as a child of the turn's span with a link to the call's.
func (s *Service) startSpan(ctx context.Context, k plane.Key, turnID, name string, attrs ...attribute.KeyValue) (
	context.Context, trace.Span,
) {
	if !s.deps.Tracer.On() {
		return s.deps.Tracer.Start(ctx, name)
	}
	turn, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (string, error) {
		if a := st.Lookup(k); a != nil {
			if t := a.FindTurn(turnID); t != nil {
				return t.Record.GetTraceparent(), nil
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

// RecordSpan records the span of the turn that ev ended, if it ended one that is traced. events are
// all events of ev's frame.
func RecordSpan(tracer *tracing.Tracer, ev *journal.Event, events []*journal.Event) {
	t := state.EndedTurn([]*journal.Event{ev})
	if t.GetTraceparent() == "" {
		return
	}
	parent, kind := "", "" // of the turn's message, whose event is in the same frame
	for _, other := range events {
		p, ok := other.Payload.(interface{ GetMessage() *agentv1.Message })
		if ok && p.GetMessage().GetMessageId() == t.GetMessageId() && other.AgentID == ev.AgentID {
			parent, kind = p.GetMessage().GetTraceparent(), pbjson.EnumText(p.GetMessage().GetKind())
		}
	}
	failed := ""
	if t.GetState() != agentv1.TurnState_TURN_STATE_COMPLETED {
		failed = pbjson.EnumText(t.GetEndReason())
	}
	tracer.Finish(t.GetTraceparent(), parent, "turn", t.GetStartedAt().AsTime(), t.GetEndedAt().AsTime(), failed,
		attribute.String("quartet.namespace", ev.Namespace), attribute.String("quartet.agent_id", t.GetAgentId()),
		attribute.String("quartet.turn_id", t.GetTurnId()),
		attribute.String("quartet.message_id", t.GetMessageId()), attribute.String("quartet.message_kind", kind),
		attribute.String("quartet.work_item_id", t.GetWorkItemId()), attribute.String("quartet.end_reason",
			pbjson.EnumText(t.GetEndReason())), attribute.Int("quartet.rounds", int(t.GetRounds())))
}
