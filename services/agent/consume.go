package agent

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"quartet/pkg/id"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
)

// follows is what this plane hears of others: what ends, fires, or comes in.
func follows() []plane.Followed {
	return []plane.Followed{
		{
			Plane: "task", Types: []string{"task_completed", "task_failed", "task_cancelled", "task_interrupted"},
			Registry: journal.NewRegistry(taskv1.File_quartet_task_v1_task_event_proto),
		},
		{
			Plane: "waiting", Types: []string{"trigger_delivered", "timer_fired", "wait_resolved"},
			Registry: journal.NewRegistry(waitingv1.File_quartet_waiting_v1_waiting_event_proto),
		},
	}
}

// react is the rule for what other planes say: it queues messages and notes
// wakes, nothing else (SPEC A5).
func react(s *State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	a := s.agents[key{ev.Namespace, ev.AgentID}]
	if a == nil || a.rec.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETED {
		return nil, nil // nobody to tell
	}
	switch p := ev.Payload.(type) {
	case *taskv1.TaskCompleted:
		return a.hear(env, taskResult(p.GetTask(), p.GetOutputTail())), nil
	case *taskv1.TaskFailed:
		return a.hear(env, taskResult(p.GetTask(), p.GetOutputTail())), nil
	case *taskv1.TaskCancelled:
		return a.hear(env, taskResult(p.GetTask(), p.GetOutputTail())), nil
	case *taskv1.TaskInterrupted:
		return a.hear(env, taskResult(p.GetTask(), p.GetOutputTail())), nil
	case *waitingv1.TimerFired:
		return a.hear(env, timerTick(p)), nil
	case *waitingv1.TriggerDelivered:
		if p.GetContentful() {
			return a.hear(env, callback(p)), nil
		}
		if p.GetWakeAgent() {
			return a.wake("trigger", p.GetTrigger().GetTriggerId()), nil
		}
	case *waitingv1.WaitResolved:
		// An item that may go on is the scheduler's to notice. An agent that
		// waited by itself has nothing but this to wake it; what came with a
		// message has woken it already. A result that was there before the wait
		// may have been read long ago, so it wakes too (SPEC P1).
		if p.GetWait().GetWorkItemId() == "" && (p.GetCause() == "timer" || p.GetCause() == "task_result_present") {
			return a.wake("wait", p.GetWait().GetWaitId()), nil
		}
	}
	return nil, nil
}

// hear queues a message unless it was queued before: its id follows from what
// it is about.
func (a *agentState) hear(env journal.Env, m *agentv1.Message) []*journal.Event {
	m.MessageId = id.Derived("msg_", a.namespace, a.rec.GetAgentId(), m.GetCausationId())
	m.AgentId = a.rec.GetAgentId()
	if a.messages[m.GetMessageId()] != nil {
		return nil
	}
	m = newMessage(env, m)
	ev := messageEvent(m, &agentv1.MessageQueued{Message: m})
	ev.Namespace = a.namespace
	return []*journal.Event{ev}
}

func (a *agentState) wake(source, sourceID string) []*journal.Event {
	return []*journal.Event{{
		Namespace: a.namespace, AgentID: a.rec.GetAgentId(),
		Payload: &agentv1.AgentWoken{Source: source, SourceId: sourceID, Coalesced: a.woken != nil},
	}}
}

// taskResult goes to the item that the task was started for, whatever the
// agent has in focus by then (SPEC T5).
func taskResult(t *taskv1.Task, tail string) *agentv1.Message {
	var b strings.Builder
	fmt.Fprintf(&b, "Task %s %s: %s", t.GetTaskId(), lower(t.GetState().String(), "TASK_STATE_"), t.GetLabel())
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
		CausationId: fmt.Sprintf("%s/%d", t.GetTimerId(), t.GetFireCount()), WorkItemId: t.GetWorkItemId(),
	}
}

// callback carries what an outside system sent: evidence, never instruction.
func callback(p *waitingv1.TriggerDelivered) *agentv1.Message {
	m := &agentv1.Message{
		Kind: agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT, Origin: agentv1.Origin_ORIGIN_CALLBACK,
		ContentType: p.GetContentType(), CausationId: p.GetDeliveryId(), CorrelationId: p.GetTrigger().GetTriggerId(),
		WorkItemId: p.GetTrigger().GetWorkItemId(),
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
