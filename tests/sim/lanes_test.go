package sim

import (
	"cmp"
	"fmt"
	"slices"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// lanes follow the messages of agents: in which order turns take them, how their attempts are counted, and what turns
// are bound to (SPEC A5, A13). They are part of the books.
type lanes struct {
	queued   map[string][]*agentv1.Message // by agent, in the order of their arrival
	latest   map[string]*agentv1.Message   // by message: as it was last
	progress map[string]bool               // turns in which a call changed something
}

func newLanes() *lanes {
	return &lanes{
		queued: map[string][]*agentv1.Message{}, latest: map[string]*agentv1.Message{}, progress: map[string]bool{},
	}
}

// mostProgressed is how many failed attempts on a message are not counted because they had made progress.
const mostProgressed = 30

// read follows one event of the agent plane.
func (l *lanes) read(payload any) (err error) {
	switch p := payload.(type) {
	case *agentv1.ToolResultRecorded:
		l.progress[p.GetTurnId()] = l.progress[p.GetTurnId()] || p.GetMutated()
	case *agentv1.TurnStarted:
		return l.bound(p.GetTurn())
	case *agentv1.MessageQueued:
		l.queued[p.GetMessage().GetAgentId()] = append(l.queued[p.GetMessage().GetAgentId()], p.GetMessage())
	case *agentv1.MessageRequeued:
		err = l.again(p.GetMessage())
	case *agentv1.MessageDequeued:
		err = l.taken(p.GetMessage())
	case interface{ GetMessage() *agentv1.Message }:
		l.leave(p.GetMessage())
	}
	if p, ok := payload.(interface{ GetMessage() *agentv1.Message }); ok {
		l.latest[p.GetMessage().GetMessageId()] = p.GetMessage()
	}
	return err
}

// leave removes a message from its lane.
func (l *lanes) leave(m *agentv1.Message) {
	l.queued[m.GetAgentId()] = slices.DeleteFunc(l.queued[m.GetAgentId()], func(x *agentv1.Message) bool {
		return x.GetMessageId() == m.GetMessageId()
	})
}

// taken checks that a message which a turn takes was the next one: of the first priority there is, the oldest, but a
// tick behind every prompt of an operator (SPEC A5.1, A5.5).
func (l *lanes) taken(m *agentv1.Message) error {
	prompt := agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT
	for _, x := range l.queued[m.GetAgentId()] {
		switch {
		case x.GetMessageId() == m.GetMessageId():
			if m.GetTick() == nil { // of what arrived later, only another priority passes it
				l.leave(m)
				return l.first(m)
			}
		case x.GetPriority() != m.GetPriority():
		case m.GetTick() != nil && x.GetKind() == prompt, m.GetTick() == nil && x.GetTick() == nil:
			return fmt.Errorf("message %s was taken before %v (SPEC A5.5)", m.GetMessageId(), x)
		}
	}
	l.leave(m)
	return l.first(m)
}

// first checks that no message of an earlier priority is queued.
func (l *lanes) first(m *agentv1.Message) error {
	for _, x := range l.queued[m.GetAgentId()] {
		if cmp.Compare(x.GetPriority(), m.GetPriority()) < 0 {
			return fmt.Errorf("message %v was taken before %v, whose priority is higher", m, x)
		}
	}
	return nil
}

// again puts a message at the front of its lane, and checks how the attempt was counted (SPEC A5.6).
func (l *lanes) again(m *agentv1.Message) error {
	before := l.latest[m.GetMessageId()]
	l.queued[m.GetAgentId()] = slices.Insert(l.queued[m.GetAgentId()], 0, m)
	uncounted := m.GetProgressedAttempts() - before.GetProgressedAttempts()
	switch turn := before.GetTurnId(); {
	case uncounted == 0:
	case uncounted != 1 || !l.progress[turn] || m.GetAttempts() != before.GetAttempts()-1 ||
		m.GetProgressedAttempts() > mostProgressed:
		return fmt.Errorf("message %v was taken as %v; its turn made progress: %t", m, before, l.progress[turn])
	}
	return nil
}

// bound checks what a turn is bound to: what its message names comes first, and a choice among items binds none
// (SPEC A13).
func (l *lanes) bound(t *agentv1.Turn) error {
	m := l.latest[t.GetMessageId()]
	about := cmp.Or(m.GetTick().GetWorkItemId(), m.GetWorkItemId())
	picks := m.GetTick().GetReason() == agentv1.TickReason_TICK_REASON_PICK_QUEUED
	switch of := t.GetBoundWorkItemId(); {
	case picks && of != "",
		t.GetBinding() == agentv1.Binding_BINDING_MESSAGE && of != about,
		t.GetBinding() != agentv1.Binding_BINDING_MESSAGE && of == about && about != "",
		(t.GetBinding() == agentv1.Binding_BINDING_UNSPECIFIED) != (of == ""):
		return fmt.Errorf("turn %v was bound for message %v", t, m)
	}
	return nil
}
