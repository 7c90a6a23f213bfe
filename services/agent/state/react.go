package state

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"quartet/pkg/id"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/services/agent/lane"
)

// React is the rule for events of other planes: it queues messages and records wakes
// (SPEC A5).
func React(s *State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	a := s.Lookup(plane.Key{Namespace: ev.Namespace, ID: ev.AgentID})
	if a == nil || !a.IsActive() {
		return nil, nil // nobody receives it
	}
	switch p := ev.Payload.(type) {
	case *taskv1.TaskCompleted:
		return a.enqueueOnce(env, taskResult(p.GetTask(), p.GetOutputTail())), nil
	case *taskv1.TaskFailed:
		return a.enqueueOnce(env, taskResult(p.GetTask(), p.GetOutputTail())), nil
	case *taskv1.TaskCancelled:
		return a.enqueueOnce(env, taskResult(p.GetTask(), p.GetOutputTail())), nil
	case *taskv1.TaskInterrupted:
		return a.enqueueOnce(env, taskResult(p.GetTask(), p.GetOutputTail())), nil
	case *taskv1.TaskCancelling:
		return a.requestStop(ev.Namespace, p.GetTask().GetDelegationId()), nil
	case *workv1.WorkItemCreated:
		return a.noteFirstItem(ev.Namespace, p.GetWorkItem().GetWorkItemId()), nil
	case *workv1.ReportPromoted:
		return a.reportBrief(env, p), nil
	case *waitingv1.TimerFired:
		if a.timerTickQueued(p.GetTimer().GetTimerId()) {
			return nil, nil // the queued tick covers this one (SPEC P7)
		}
		return a.enqueueOnce(env, timerTick(p)), nil
	case *waitingv1.TriggerDelivered:
		if p.GetContentful() {
			return a.enqueueOnce(env, callback(p)), nil
		}
		if p.GetWakeAgent() {
			return a.wakeEvents("trigger", p.GetTrigger().GetTriggerId(), p.GetWaitIds()), nil
		}
	case *waitingv1.WaitTriggered:
		if p.GetWakeAgent() {
			return a.wakeEvents("trigger", p.GetTriggerId(), []string{p.GetWait().GetWaitId()}), nil
		}
	case *waitingv1.WaitRechecked:
		return a.wakeByEnd("recheck", p.GetWait().GetWaitId()), nil
	case *waitingv1.WaitResolved:
		// The scheduler notices that an item may continue. An agent that waited for
		// itself is woken by nothing else, unless a message came with the resolution. A
		// task result that existed before the wait may have been read long ago, so it
		// wakes the agent too (SPEC P1).
		if p.GetWait().GetWorkItemId() == "" && (p.GetCause() == waitingv1.WaitCause_WAIT_CAUSE_TIMER ||
			p.GetCause() == waitingv1.WaitCause_WAIT_CAUSE_TASK_RESULT_PRESENT) {
			return a.wakeByEnd("wait", p.GetWait().GetWaitId()), nil
		}
	}
	return nil, nil
}

// timerTickQueued reports whether a tick of a timer is queued. A paused agent with a
// timer of one second must not find 86 400 messages after a day.
func (a *Agent) timerTickQueued(timerID string) bool {
	for m := range a.Lane.Queued() {
		if m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_TIMER_TICK && m.GetCorrelationId() == timerID {
			return true
		}
	}
	return false
}

// enqueueOnce returns the event that queues m. It returns none if the lane has a message with the same
// cause in memory, or if a call has returned the result that m reports. It sets the agent of m and its
// id, which follows from the cause.
func (a *Agent) enqueueOnce(env journal.Env, m *agentv1.Message) []*journal.Event {
	m.MessageId = a.MessageIDFor(m.GetCausationId())
	m.AgentId = a.Record.GetAgentId()
	if a.Lane.Get(m.GetMessageId()) != nil || m.GetTaskId() != "" && slices.Contains(a.AnsweredTasks, m.GetTaskId()) {
		return nil
	}
	m = lane.NewMessage(env, m)
	ev := lane.Event(m, &agentv1.MessageQueued{Message: m})
	ev.Namespace = a.Namespace
	return []*journal.Event{ev}
}

// MessageIDFor returns the id of the message about something that happened in another
// plane.
func (a *Agent) MessageIDFor(cause string) string {
	return id.Derived("msg_", a.Namespace, a.Record.GetAgentId(), cause)
}

// keptAnsweredTasks is how many commands are remembered whose calls returned their results. The
// event of a command's end arrives within milliseconds of its result.
const keptAnsweredTasks = 64

// RecordAnswer records that a call returned the result of its command: a message with the
// same result would cost a turn for nothing (SPEC T1). The record is in the frame that
// holds the call's result, so an agent that does not get the result gets the message. If that message is
// queued already, RecordAnswer drops it.
func (a *Agent) RecordAnswer(env journal.Env, taskID string) []*journal.Event {
	if taskID == "" || slices.Contains(a.AnsweredTasks, taskID) {
		return nil
	}
	events := []*journal.Event{{AgentID: a.Record.GetAgentId(), TaskID: taskID, Payload: &agentv1.TaskAnswered{
		TaskId: taskID,
	}}}
	if m := a.Lane.Get(a.MessageIDFor(taskID)); m.GetState() == agentv1.MessageState_MESSAGE_STATE_QUEUED {
		gone := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_DROPPED,
			"answered: the call that started the command had its result")
		events = append(events, lane.Event(gone, &agentv1.MessageDropped{Message: gone}))
	}
	return events
}

// wakeByEnd returns the one event that wakes the agent because a wait of its own was resolved, or as a reminder of
// one. Despite its name, EndedWaitIds has waits of both kinds: this one is added, unless maxEndedWaits are there
// already.
func (a *Agent) wakeByEnd(source, waitID string) []*journal.Event {
	events := a.wakeEvents(source, waitID, nil)
	if woken, ok := journal.Find[*agentv1.AgentWoken](events); ok && len(woken.GetEndedWaitIds()) < maxEndedWaits {
		woken.EndedWaitIds = append(woken.GetEndedWaitIds(), waitID)
	}
	return events
}

// maxEndedWaits bounds the ended waits that a wake names. An agent has one wait of its own
// at a time, so there are more only if it was woken many times without a turn.
const maxEndedWaits = 16

// wakeEvents returns the event that the agent itself was woken. A wake that no completed turn has
// shown yet is combined with it: the waits of both are named, or none if either is not limited to
// certain waits.
func (a *Agent) wakeEvents(source, sourceID string, waitIDs []string) []*journal.Event {
	before := a.Wake
	if before == nil && a.OpenTurn != nil {
		before = a.OpenTurn.shownWake // it is pending again if the turn fails
	}
	if before != nil {
		if len(before.GetWaitIds()) == 0 || len(waitIDs) == 0 {
			waitIDs = nil
		} else {
			waitIDs = slices.Compact(slices.Sorted(slices.Values(slices.Concat(before.GetWaitIds(), waitIDs))))
		}
	}
	return []*journal.Event{{
		Namespace: a.Namespace, AgentID: a.Record.GetAgentId(),
		Payload: &agentv1.AgentWoken{
			Source: source, SourceId: sourceID, Coalesced: a.Wake != nil, WaitIds: waitIDs,
			EndedWaitIds: slices.Clone(before.GetEndedWaitIds()),
		},
	}}
}

// noteFirstItem records the first item of a private child: the one that its delegation is
// about (SPEC A3).
func (a *Agent) noteFirstItem(namespace, itemID string) []*journal.Event {
	if a.firstItem != "" || a.Record.GetVisibility() != agentv1.Visibility_VISIBILITY_PRIVATE {
		return nil
	}
	return []*journal.Event{{
		Namespace: namespace, AgentID: a.Record.GetAgentId(), WorkItemID: itemID, Payload: &agentv1.FirstItemNoted{
			WorkItemId: itemID,
		},
	}}
}

// taskResult returns the message with a task's result. It is about the item that the task
// was started for, whatever item is current by then (SPEC T5).
func taskResult(t *taskv1.Task, tail string) *agentv1.Message {
	var b strings.Builder
	if t.GetKind() == taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK {
		// The result is what the child reported, in full; the parent reads nothing else
		// of the child (SPEC A2).
		fmt.Fprintf(&b, "Child agent %s (task %s) %s: %s", t.GetChildAgentId(), t.GetTaskId(),
			pbjson.EnumText(t.GetState()), t.GetLabel())
		if tail != "" {
			fmt.Fprintf(&b, "\nIts result:\n%s", tail)
		}
		return &agentv1.Message{
			Kind: agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT, Origin: agentv1.Origin_ORIGIN_TASK, Text: b.String(),
			CausationId: t.GetTaskId(), TaskId: t.GetTaskId(), WorkItemId: t.GetWorkItemId(),
			CorrelationId: t.GetDelegationId(), DelegationId: t.GetDelegationId(),
		}
	}
	fmt.Fprintf(&b, "Task %s %s: %s", t.GetTaskId(), pbjson.EnumText(t.GetState()), t.GetLabel())
	if t.ExitCode != nil {
		fmt.Fprintf(&b, " (exit code %d)", t.GetExitCode())
	}
	if t.GetEndMessage() != "" {
		fmt.Fprintf(&b, "\n%s", t.GetEndMessage())
	}
	if tail != "" {
		fmt.Fprintf(&b, "\nEnd of its output:\n%s", tail)
	}
	return &agentv1.Message{
		Kind: agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT, Origin: agentv1.Origin_ORIGIN_TASK, Text: b.String(),
		CausationId: t.GetTaskId(), TaskId: t.GetTaskId(), WorkItemId: t.GetWorkItemId(),
	}
}

func timerTick(p *waitingv1.TimerFired) *agentv1.Message {
	t := p.GetTimer()
	text := "Timer " + t.GetTimerId() + " fired"
	if t.GetDescription() != "" {
		text += ": " + t.GetDescription()
	}
	return &agentv1.Message{
		Kind: agentv1.MessageKind_MESSAGE_KIND_TIMER_TICK, Origin: agentv1.Origin_ORIGIN_TIMER, Text: text,
		CausationId: fmt.Sprintf("%s/%d", t.GetTimerId(), t.GetFireCount()), CorrelationId: t.GetTimerId(),
		WorkItemId: t.GetWorkItemId(),
		TimerId:    t.GetTimerId(), SourceDescription: t.GetDescription(),
	}
}

// callback returns the message with the body that an external system delivered: evidence,
// never an instruction.
func callback(p *waitingv1.TriggerDelivered) *agentv1.Message {
	m := &agentv1.Message{
		Kind: agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT, Origin: agentv1.Origin_ORIGIN_CALLBACK,
		ContentType: p.GetContentType(), CausationId: p.GetDeliveryId(), CorrelationId: p.GetTrigger().GetTriggerId(),
		WorkItemId: p.GetTrigger().GetWorkItemId(), WaitIds: p.GetWaitIds(),
		TriggerId: p.GetTrigger().GetTriggerId(), SourceDescription: p.GetTrigger().GetDescription(),
	}
	switch body := p.GetBody(); {
	case len(body) == 0:
		m.Text = "Trigger " + p.GetTrigger().GetTriggerId() + " was called without a body"
	case utf8.Valid(body) && bytes.IndexByte(body, 0) < 0:
		m.Text = string(body)
	default:
		m.Data = body
	}
	return m
}
