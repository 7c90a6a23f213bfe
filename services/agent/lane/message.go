package lane

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// NewMessage completes m as a queued message, and returns m itself. It sets the id and the priority if m has
// none, the timestamps, the traceparent, and the authority: the lower of the one that follows from the
// origin and the one that m has.
func NewMessage(env journal.Env, m *agentv1.Message) *agentv1.Message {
	now := timestamppb.New(env.Now)
	if m.GetMessageId() == "" {
		m.MessageId = env.NewID("msg_")
	}
	if m.GetPriority() == agentv1.Priority_PRIORITY_UNSPECIFIED {
		m.Priority = agentv1.Priority_PRIORITY_NORMAL
	}
	m.Authority = max(m.GetAuthority(), authorityOf(m.GetOrigin())) // a larger number is less authority
	m.State = agentv1.MessageState_MESSAGE_STATE_QUEUED
	m.CreatedAt, m.UpdatedAt = now, now
	m.Traceparent = env.Traceparent
	return m
}

// authorityOf derives the authority of a message from its origin. The text of a
// message never raises its authority (SPEC A5).
func authorityOf(o agentv1.Origin) agentv1.Authority {
	switch o {
	case agentv1.Origin_ORIGIN_OPERATOR, agentv1.Origin_ORIGIN_PARENT:
		return agentv1.Authority_AUTHORITY_OPERATOR_INSTRUCTION
	case agentv1.Origin_ORIGIN_TIMER, agentv1.Origin_ORIGIN_SYSTEM, agentv1.Origin_ORIGIN_TASK:
		return agentv1.Authority_AUTHORITY_RUNTIME_INSTRUCTION
	case agentv1.Origin_ORIGIN_CHANNEL, agentv1.Origin_ORIGIN_WEBHOOK:
		return agentv1.Authority_AUTHORITY_INTEGRATION_SIGNAL
	case agentv1.Origin_ORIGIN_CALLBACK, agentv1.Origin_ORIGIN_CHILD, agentv1.Origin_ORIGIN_UNSPECIFIED:
	}
	return agentv1.Authority_AUTHORITY_EXTERNAL_EVIDENCE
}

// WithState returns a copy of a message in another state.
func WithState(m *agentv1.Message, env journal.Env, state agentv1.MessageState, reason string) *agentv1.Message {
	n := proto.CloneOf(m)
	n.State, n.StateReason, n.UpdatedAt = state, reason, timestamppb.New(env.Now)
	return n
}

// Event returns an event about a message, with the envelope fields that every such
// event carries.
func Event(m *agentv1.Message, payload proto.Message) *journal.Event {
	return &journal.Event{
		AgentID: m.GetAgentId(), WorkItemID: m.GetWorkItemId(), TaskID: m.GetTaskId(),
		Payload: payload,
	}
}

// OfferedAgain reports whether a message is a tick that the scheduler offers again if it was dropped and is still due.
// A reminder is given once (SPEC P5), and counts as given when its tick is queued, so that tick is not.
func OfferedAgain(m *agentv1.Message) bool {
	return m.GetTick() != nil && m.GetTick().GetReason() != agentv1.TickReason_TICK_REASON_RECHECK
}

// JournalBytes returns a number of bytes that an event with a message does not exceed in the journal.
func JournalBytes(m *agentv1.Message) int {
	const envelope = 1 << 10 // the fields of the line, and the names and separators of the message
	return envelope + 2*(proto.Size(m)-size(m)) + quotedBytes(m.GetText()) + 2*len(m.GetData())
}

// quotedBytes returns a number of bytes that a text does not exceed as a JSON string.
func quotedBytes(s string) int {
	n := len(s)
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c == 0x7f || c == '<' || c == '>' || c == '&':
			n += 5
		case c == '"' || c == '\\' || c >= 0x80:
			n++
		}
	}
	return n
}

// Dropped returns the event that drops a message for a reason.
func Dropped(m *agentv1.Message, env journal.Env, reason string) *journal.Event {
	next := WithState(m, env, agentv1.MessageState_MESSAGE_STATE_DROPPED, reason)
	return Event(next, &agentv1.MessageDropped{Message: next})
}
