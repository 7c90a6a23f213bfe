package state

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/utf8cut"
	"quartet/services/agent/lane"
)

const (
	// MaxQuestions is how many questions of a child its delegation records at a time. A child
	// may have more waits for an operator, one for each item; their questions follow as the
	// others end.
	MaxQuestions = 16
	// MaxQuestionBytes bounds a question in the delegation's record, which every further event
	// of the delegation repeats. The message has all of it.
	MaxQuestionBytes = 2 << 10
)

// OverReason begins the reason of a message that is dropped because the child no longer waits
// for the answer.
const OverReason = "over"

// IsQuestion reports whether a message is the question of a child.
func IsQuestion(m *agentv1.Message) bool {
	return m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP &&
		m.GetOrigin() == agentv1.Origin_ORIGIN_CHILD
}

// Questions returns those of a child's waits that ask its supervisor something: the active waits
// for an operator (SPEC A14).
func Questions(waits []*waitingv1.Wait) []*waitingv1.Wait {
	return slices.DeleteFunc(slices.Clone(waits), func(w *waitingv1.Wait) bool {
		return w.GetMode() != waitingv1.WaitMode_WAIT_MODE_WAIT ||
			w.GetKind() != waitingv1.WaitKind_WAIT_KIND_OPERATOR ||
			w.GetStatus() != waitingv1.WaitStatus_WAIT_STATUS_ACTIVE
	})
}

// NoteQuestions records in a delegation what its child asks (SPEC A14). waits are the child's
// active waits for an operator, oldest first. Each that the record does not have becomes a
// message to the parent, in the same frame as the record; a question whose wait has ended
// leaves the record, and its message is dropped if it is still queued. It returns no events if
// the record says the same.
func (a *Agent) NoteQuestions(env journal.Env, delegationID string, waits []*waitingv1.Wait) []*journal.Event {
	d := a.Delegation(delegationID)
	if d == nil || !IsOpen(d.Record) || !a.IsActive() {
		return nil
	}
	next := proto.CloneOf(d.Record)
	next.Questions = nil
	var messages []*journal.Event
	for _, q := range d.Record.GetQuestions() {
		if slices.ContainsFunc(waits, func(w *waitingv1.Wait) bool { return w.GetWaitId() == q.GetWaitId() }) {
			next.Questions = append(next.Questions, q)
			continue
		}
		messages = append(messages, a.dropQuestion(env, q, "the child no longer waits for the answer")...)
	}
	changed := len(next.GetQuestions()) < len(d.Record.GetQuestions())
	for _, w := range waits {
		if len(next.GetQuestions()) == MaxQuestions || asks(next, w.GetWaitId()) {
			continue
		}
		next.Questions = append(next.Questions, &agentv1.ChildQuestion{
			WaitId: w.GetWaitId(),
			Text:   clipQuestion(w.GetReason()), AskedAt: w.GetCreatedAt(),
		})
		messages = append(messages, a.enqueueOnce(env, questionMessage(d.Record, w))...)
		changed = true
	}
	if !changed {
		return nil
	}
	return append([]*journal.Event{DelegationEvent(next, &agentv1.DelegationUpdated{Delegation: next})}, messages...)
}

// asks reports whether a delegation records the question of a wait.
func asks(d *agentv1.Delegation, waitID string) bool {
	return slices.ContainsFunc(d.GetQuestions(), func(q *agentv1.ChildQuestion) bool { return q.GetWaitId() == waitID })
}

// questionMessage returns the message about a question. It is about the item for which the
// child was spawned. The child's words are its end, so that nothing in them can be taken for
// the runtime's.
func questionMessage(d *agentv1.Delegation, w *waitingv1.Wait) *agentv1.Message {
	return &agentv1.Message{
		Kind: agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP, Origin: agentv1.Origin_ORIGIN_CHILD,
		Text: fmt.Sprintf("Your child agent %s (task %s: %s) waits for your answer. Give it with TaskInput, task_id "+
			"%s, wait_id %s. It asks:\n%s",
			d.GetChildAgentId(), d.GetTaskId(), d.GetLabel(), d.GetTaskId(), w.GetWaitId(), w.GetReason()),
		CausationId: w.GetWaitId(), TaskId: d.GetTaskId(), WorkItemId: d.GetParentWorkItemId(),
		CorrelationId: d.GetDelegationId(), DelegationId: d.GetDelegationId(),
	}
}

// dropQuestion drops the message about a question if no turn has taken it.
func (a *Agent) dropQuestion(env journal.Env, q *agentv1.ChildQuestion, why string) []*journal.Event {
	m := a.Lane.Get(a.MessageIDFor(q.GetWaitId()))
	if m.GetState() != agentv1.MessageState_MESSAGE_STATE_QUEUED {
		return nil
	}
	return []*journal.Event{lane.Dropped(m, env, OverReason+": "+why)}
}

// LastArrival returns the wal_seq of the event that queued the newest of the agent's messages that are queued or in
// the open turn; 0 if there is none, or if the agent is nil.
func (a *Agent) LastArrival() uint64 {
	if a == nil {
		return 0
	}
	return a.Lane.LastQueuedAt()
}

// AskingChildren returns the open delegations whose children ask something, oldest first.
func (a *Agent) AskingChildren() []*agentv1.Delegation {
	var asking []*agentv1.Delegation
	for _, d := range a.OpenDelegations() {
		if len(d.Record.GetQuestions()) > 0 {
			asking = append(asking, d.Record)
		}
	}
	return asking
}

func clipQuestion(text string) string {
	if len(text) <= MaxQuestionBytes {
		return text
	}
	return utf8cut.Bytes(text, MaxQuestionBytes-len("…")) + "…"
}
