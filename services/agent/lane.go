package agent

import (
	"slices"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// bands is the number of priorities. Within a band messages are first in,
// first out; no rule ever reorders them (SPEC A5).
const bands = 4

// maxAttempts is how many turns a message gets before it is put aside (SPEC A5).
const maxAttempts = 3

func band(p agentv1.Priority) int {
	switch p {
	case agentv1.Priority_PRIORITY_INTERJECT:
		return 0
	case agentv1.Priority_PRIORITY_NEXT:
		return 1
	case agentv1.Priority_PRIORITY_BACKGROUND:
		return 3
	case agentv1.Priority_PRIORITY_UNSPECIFIED, agentv1.Priority_PRIORITY_NORMAL:
	}
	return 2
}

// queue puts a message into the lane: at the end of its band, or at the front
// when its turn ended without it.
func (a *agentState) queue(m *agentv1.Message, front bool) {
	a.note(m)
	// An interjection whose turn was lost comes back.
	a.settled = slices.DeleteFunc(a.settled, func(id string) bool { return id == m.GetMessageId() })
	b := band(m.GetPriority())
	if front {
		a.lane[b] = slices.Insert(slices.Clone(a.lane[b]), 0, m)
		return
	}
	a.lane[b] = append(a.lane[b], m)
}

func (a *agentState) note(m *agentv1.Message) {
	if a.messages == nil {
		a.messages = map[string]*agentv1.Message{}
	}
	a.messages[m.GetMessageId()] = m
}

// unqueue takes a message out of the lane and keeps its new record.
func (a *agentState) unqueue(m *agentv1.Message) {
	a.note(m)
	b := band(m.GetPriority())
	a.lane[b] = slices.DeleteFunc(slices.Clone(a.lane[b]), func(q *agentv1.Message) bool {
		return q.GetMessageId() == m.GetMessageId()
	})
}

// settle keeps a message's last record. Of the settled ones only the newest
// stay in memory.
func (a *agentState) settle(m *agentv1.Message) {
	a.unqueue(m)
	if a.tick == m.GetMessageId() {
		a.tick = ""
	}
	a.settled = append(a.settled, m.GetMessageId())
	if len(a.settled) <= keptMessages {
		return
	}
	gone := a.settled[0]
	a.settled = slices.Delete(a.settled, 0, 1)
	delete(a.messages, gone)
	if i := slices.Index(a.order, gone); i >= 0 {
		a.order = slices.Delete(a.order, i, i+1)
	}
}

// head is the next message of the lane.
func (a *agentState) head() *agentv1.Message {
	for _, b := range a.lane {
		if len(b) > 0 {
			return b[0]
		}
	}
	return nil
}

// interjections are the queued messages that a running turn should see.
func (a *agentState) interjections() []*agentv1.Message { return a.lane[0] }

func (a *agentState) counts() *agentv1.Lane {
	l := &agentv1.Lane{}
	for _, b := range a.lane {
		l.Queued += int32(len(b))
	}
	for _, m := range a.messages {
		switch m.GetState() {
		case agentv1.MessageState_MESSAGE_STATE_DEQUEUED:
			l.Dequeued++
		case agentv1.MessageState_MESSAGE_STATE_QUARANTINED:
			l.Quarantined++
		default:
		}
	}
	return l
}

// moved is a message in its next state.
func moved(m *agentv1.Message, env journal.Env, state agentv1.MessageState, reason string) *agentv1.Message {
	n := proto.CloneOf(m)
	n.State, n.StateReason, n.UpdatedAt = state, reason, timestamppb.New(env.Now)
	return n
}

// messageEvent wraps a payload with what every event of a message carries.
func messageEvent(m *agentv1.Message, payload proto.Message) *journal.Event {
	return &journal.Event{AgentID: m.GetAgentId(), WorkItemID: m.GetWorkItemId(), TaskID: m.GetTaskId(), Payload: payload}
}

// newMessage is a queued message. Origin decides its authority, never its text.
func newMessage(env journal.Env, m *agentv1.Message) *agentv1.Message {
	now := timestamppb.New(env.Now)
	if m.GetMessageId() == "" {
		m.MessageId = env.NewID("msg_")
	}
	if m.GetPriority() == agentv1.Priority_PRIORITY_UNSPECIFIED {
		m.Priority = agentv1.Priority_PRIORITY_NORMAL
	}
	m.Authority = authorityOf(m.GetOrigin())
	m.State = agentv1.MessageState_MESSAGE_STATE_QUEUED
	m.CreatedAt, m.UpdatedAt = now, now
	m.Traceparent = env.Traceparent
	return m
}

func authorityOf(o agentv1.Origin) agentv1.Authority {
	switch o {
	case agentv1.Origin_ORIGIN_OPERATOR, agentv1.Origin_ORIGIN_PARENT:
		return agentv1.Authority_AUTHORITY_OPERATOR_INSTRUCTION
	case agentv1.Origin_ORIGIN_TIMER, agentv1.Origin_ORIGIN_SYSTEM, agentv1.Origin_ORIGIN_TASK:
		return agentv1.Authority_AUTHORITY_RUNTIME_INSTRUCTION
	case agentv1.Origin_ORIGIN_CHANNEL, agentv1.Origin_ORIGIN_WEBHOOK:
		return agentv1.Authority_AUTHORITY_INTEGRATION_SIGNAL
	case agentv1.Origin_ORIGIN_CALLBACK, agentv1.Origin_ORIGIN_UNSPECIFIED:
	}
	return agentv1.Authority_AUTHORITY_EXTERNAL_EVIDENCE
}
