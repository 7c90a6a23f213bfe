package state

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/utf8cut"
	"quartet/services/agent/lane"
)

// endBrief returns the brief that reports the end of a turn to the operator: that its
// message was quarantined, or the turn's last text unless a report has it (SPEC W7).
func (a *Agent) endBrief(env journal.Env, t *agentv1.Turn, events []*journal.Event) []*journal.Event {
	for _, ev := range events {
		if p, ok := ev.Payload.(*agentv1.MessageQuarantined); ok && p.GetMessage().GetMessageId() == t.GetMessageId() {
			return a.briefEvents(env, agentv1.BriefKind_BRIEF_KIND_FAILURE, a.briefID(t.GetMessageId(), "failure"),
				"Put aside: "+p.GetMessage().GetStateReason(), p.GetMessage().GetWorkItemId(), t.GetTurnId())
		}
	}
	n := len(a.OpenTurn.Rounds)
	if n == 0 || t.GetState() != agentv1.TurnState_TURN_STATE_COMPLETED || a.promotedIn(events) ||
		a.Lane.Get(t.GetMessageId()).GetKind() != agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT {
		return nil
	}
	last := a.OpenTurn.Rounds[n-1].GetText()
	if strings.TrimSpace(last) == "" {
		return nil
	}
	return a.briefEvents(env, agentv1.BriefKind_BRIEF_KIND_RESULT, a.briefID(t.GetTurnId(), "final"),
		utf8cut.Shorten(last, maxBriefBytes), "", t.GetTurnId())
}

// promotedIn reports whether a round of the open turn became a report, by the state or by events of the same frame.
func (a *Agent) promotedIn(events []*journal.Event) bool {
	for _, settled := range a.OpenTurn.Settled {
		if settled.GetPromotedWorkItemId() != "" {
			return true
		}
	}
	for _, ev := range events {
		if p, ok := ev.Payload.(*agentv1.RoundSettled); ok && p.GetPromotedWorkItemId() != "" {
			return true
		}
	}
	return false
}

// Ending is how a turn ends.
type Ending struct {
	State      agentv1.TurnState
	Reason     agentv1.TurnEndReason
	Message    string
	Requeue    bool // the message returns to its lane, or is quarantined if its attempts are used up
	Uncounted  bool // with Requeue: the attempt is not counted
	Quarantine bool // the message is quarantined at once
	DropTick   bool // a tick that is offered again (lane.OfferedAgain) is dropped instead of queued
	Reported   bool // the last text is the report of an item, which has a brief of its own
}

// EndTurn is the rule for every end of the open turn: it returns the events before, followed by
// those for the messages that were interjected, the turn's message, the turn, and its brief. A
// message that is to be queued again is quarantined instead when its attempts are used up.
func (a *Agent) EndTurn(env journal.Env, how Ending, before []*journal.Event) []*journal.Event {
	t := proto.CloneOf(a.OpenTurn.Record)
	t.State, t.EndReason, t.EndedAt = how.State, how.Reason, timestamppb.New(env.Now)
	events := before
	if how.State != agentv1.TurnState_TURN_STATE_COMPLETED &&
		how.Reason != agentv1.TurnEndReason_TURN_END_REASON_AGENT_DELETED {
		// Messages that were interjected into a run that failed or was aborted are queued
		// again (SPEC A9): an abort ends the turn's own message only. Each goes to the
		// front of its band, so the last goes first, and all of them before the turn's
		// message, which may precede them in its band (SPEC A5).
		ids := t.GetInterjectedMessageIds()
		for i := len(ids) - 1; i >= 0; i-- {
			if im := a.Lane.Get(ids[i]); im.GetState() == agentv1.MessageState_MESSAGE_STATE_INTERJECTED {
				q := lane.WithState(im, env, agentv1.MessageState_MESSAGE_STATE_QUEUED,
					"turn_"+pbjson.EnumText(how.Reason))
				events = append(events, lane.Event(q, &agentv1.MessageRequeued{Message: q}))
			}
		}
	}
	m := a.Lane.Get(t.GetMessageId())
	switch {
	case how.Quarantine:
		q := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_QUARANTINED, reasonOf(how))
		events = append(events, lane.Event(q, &agentv1.MessageQuarantined{Message: q}))
	case how.DropTick && lane.OfferedAgain(m):
		events = append(events, lane.Dropped(m, env, reasonOf(how)))
	case how.Requeue && !how.Uncounted && a.OpenTurn.Progressed && m.GetProgressedAttempts() < lane.MaxProgressed:
		q := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_QUEUED, reasonOf(how))
		q.Attempts--
		q.ProgressedAttempts++
		events = append(events, lane.Event(q, &agentv1.MessageRequeued{Message: q}))
	case how.Requeue && (m.GetAttempts() < lane.MaxAttempts || how.Uncounted):
		q := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_QUEUED, reasonOf(how))
		if how.Uncounted {
			q.Attempts--
		}
		events = append(events, lane.Event(q, &agentv1.MessageRequeued{Message: q}))
	case how.Requeue:
		q := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_QUARANTINED,
			fmt.Sprintf("%s, attempt %d of %d", reasonOf(how), m.GetAttempts(), lane.MaxAttempts))
		events = append(events, lane.Event(q, &agentv1.MessageQuarantined{Message: q}))
	case how.State == agentv1.TurnState_TURN_STATE_ABORTED:
		q := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_ABORTED, reasonOf(how))
		events = append(events, lane.Event(q, &agentv1.MessageAborted{Message: q}))
	default:
		q := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_PROCESSED, pbjson.EnumText(how.Reason))
		events = append(events, lane.Event(q, &agentv1.MessageProcessed{Message: q}))
	}
	events = append(events, TurnEvent(t, turnPayload(t)))
	if how.Reported {
		return events
	}
	return append(events, a.endBrief(env, t, events)...)
}

func reasonOf(how Ending) string {
	if how.Message == "" {
		return pbjson.EnumText(how.Reason)
	}
	return pbjson.EnumText(how.Reason) + ": " + how.Message
}

func turnPayload(t *agentv1.Turn) proto.Message {
	switch t.GetState() {
	case agentv1.TurnState_TURN_STATE_FAILED:
		return &agentv1.TurnFailed{Turn: t}
	case agentv1.TurnState_TURN_STATE_INTERRUPTED:
		return &agentv1.TurnInterrupted{Turn: t}
	case agentv1.TurnState_TURN_STATE_ABORTED:
		return &agentv1.TurnAborted{Turn: t}
	case agentv1.TurnState_TURN_STATE_UNSPECIFIED, agentv1.TurnState_TURN_STATE_OPEN,
		agentv1.TurnState_TURN_STATE_COMPLETED:
	}
	return &agentv1.TurnCompleted{Turn: t}
}

// EndedTurn returns the turn whose end is among events, or nil.
func EndedTurn(events []*journal.Event) *agentv1.Turn {
	for _, ev := range events {
		switch p := ev.Payload.(type) {
		case *agentv1.TurnCompleted:
			return p.GetTurn()
		case *agentv1.TurnFailed:
			return p.GetTurn()
		case *agentv1.TurnInterrupted:
			return p.GetTurn()
		case *agentv1.TurnAborted:
			return p.GetTurn()
		}
	}
	return nil
}
