package agent

import (
	"bytes"
	"fmt"
	"quartet/services/agent/lane"
	"quartet/services/agent/ref"
	"slices"
	"strings"
	"unicode/utf8"

	"quartet/pkg/id"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// follows is what this plane hears of others: what ends, fires, or comes in.
// spared is told of whatever may have kept a child alive and ended without a turn
// of its: an item that an operator completed, a wait that was cancelled.
func follows(spared func(key)) []plane.Followed {
	return []plane.Followed{
		{
			Plane: "task", Types: []string{"task_completed", "task_failed", "task_cancelled", "task_interrupted", "task_cancelling"},
			Registry: journal.NewRegistry(taskv1.File_quartet_task_v1_task_event_proto),
			Matters: func(ev *journal.Event) bool {
				p, ok := ev.Payload.(*taskv1.TaskCancelling)
				return !ok || p.GetTask().GetKind() == taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK
			},
		},
		{
			Plane: "work", Types: []string{"work_item_created", "work_item_completed", "report_promoted"},
			Registry: journal.NewRegistry(workv1.File_quartet_work_v1_work_event_proto),
			Matters: func(ev *journal.Event) bool {
				switch ev.Payload.(type) {
				case *workv1.ReportPromoted:
					return true
				case *workv1.WorkItemCompleted:
					spared(ref.Agent{Namespace: ev.Namespace, ID: ev.AgentID})
					return false
				}
				return strings.HasPrefix(ev.AgentID, childPrefix)
			},
		},
		{
			Plane: "waiting", Types: []string{"trigger_delivered", "timer_fired", "wait_resolved", "wait_cancelled", "wait_triggered", "wait_rechecked"},
			Registry: journal.NewRegistry(waitingv1.File_quartet_waiting_v1_waiting_event_proto),
			Matters: func(ev *journal.Event) bool {
				if _, ok := ev.Payload.(*waitingv1.WaitCancelled); ok {
					spared(ref.Agent{Namespace: ev.Namespace, ID: ev.AgentID})
					return false
				}
				p, ok := ev.Payload.(*waitingv1.WaitTriggered)
				return !ok || p.GetWakeAgent() // what came for an item is the work plane's to show
			},
		},
	}
}

// react is the rule for what other planes say: it queues messages and notes
// wakes, nothing else (SPEC A5).
func react(s *State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	a := s.lookup(ref.Agent{Namespace: ev.Namespace, ID: ev.AgentID})
	if a == nil || !a.lives() {
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
	case *taskv1.TaskCancelling:
		return a.stopDelegation(ev.Namespace, p.GetTask().GetDelegationId()), nil
	case *workv1.WorkItemCreated:
		return a.firstItemMade(ev.Namespace, p.GetWorkItem().GetWorkItemId()), nil
	case *workv1.ReportPromoted:
		return a.reported(env, p), nil
	case *waitingv1.TimerFired:
		if a.awaits(p.GetTimer().GetTimerId()) {
			return nil, nil // the tick that is queued stands for this one (SPEC P7)
		}
		return a.hear(env, timerTick(p)), nil
	case *waitingv1.TriggerDelivered:
		if p.GetContentful() {
			return a.hear(env, callback(p)), nil
		}
		if p.GetWakeAgent() {
			return a.wake("trigger", p.GetTrigger().GetTriggerId(), p.GetWaitIds()), nil
		}
	case *waitingv1.WaitTriggered:
		if p.GetWakeAgent() {
			return a.wake("trigger", p.GetTriggerId(), []string{p.GetWait().GetWaitId()}), nil
		}
	case *waitingv1.WaitRechecked:
		return a.wake("recheck", p.GetWait().GetWaitId(), nil), nil
	case *waitingv1.WaitResolved:
		// An item that may go on is the scheduler's to notice. An agent that
		// waited by itself has nothing but this to wake it; what came with a
		// message has woken it already. A result that was there before the wait
		// may have been read long ago, so it wakes too (SPEC P1).
		if p.GetWait().GetWorkItemId() == "" && (p.GetCause() == "timer" || p.GetCause() == "task_result_present") {
			return a.wake("wait", p.GetWait().GetWaitId(), nil), nil
		}
	}
	return nil, nil
}

// awaits says whether a tick of a timer is queued. A paused agent with a timer
// of a second must not find 86 400 messages a day.
func (a *agentState) awaits(timerID string) bool {
	for m := range a.lane.Queued() {
		if m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_TIMER_TICK && m.GetCorrelationId() == timerID {
			return true
		}
	}
	return false
}

// hear queues a message unless it was queued before: its id follows from what
// it is about.
func (a *agentState) hear(env journal.Env, m *agentv1.Message) []*journal.Event {
	m.MessageId = a.messageOf(m.GetCausationId())
	m.AgentId = a.rec.GetAgentId()
	if a.lane.Get(m.GetMessageId()) != nil || m.GetTaskId() != "" && slices.Contains(a.answered, m.GetTaskId()) {
		return nil
	}
	m = lane.NewMessage(env, m)
	ev := lane.Event(m, &agentv1.MessageQueued{Message: m})
	ev.Namespace = a.namespace
	return []*journal.Event{ev}
}

// wake notes that something came for the agent itself. Wakes coalesce, and what
// the first was about is not lost in the second: only while all of them are
// about waits is the wake over with those (SPEC P7).
// messageOf names the message about a thing that happened elsewhere.
func (a *agentState) messageOf(cause string) string {
	return id.Derived("msg_", a.namespace, a.rec.GetAgentId(), cause)
}

// keptAnswers is how many answered commands are remembered. The event of a
// command's end comes within milliseconds of its answer.
const keptAnswers = 64

// answer notes that a call was answered with its command's result: a message
// that tells it again would cost a turn for nothing (SPEC T1). The note is in
// the frame that holds the answer, so whoever loses the answer has the message.
func (a *agentState) answer(env journal.Env, taskID string) []*journal.Event {
	if taskID == "" || slices.Contains(a.answered, taskID) {
		return nil
	}
	events := []*journal.Event{{AgentID: a.rec.GetAgentId(), TaskID: taskID, Payload: &agentv1.TaskAnswered{TaskId: taskID}}}
	if m := a.lane.Get(a.messageOf(taskID)); m.GetState() == agentv1.MessageState_MESSAGE_STATE_QUEUED {
		gone := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_DROPPED, "answered: the call that started the command had its result")
		events = append(events, lane.Event(gone, &agentv1.MessageDropped{Message: gone}))
	}
	return events
}

// answeredTask is the command that ended within its call, "" if it goes on or
// the call was another one.
func answeredTask(r *agentv1.ToolResult) string {
	f := r.GetResult().GetFields()
	if r.GetToolName() != toolExecCommand || r.GetStatus() != statusSuccess || f["outcome"].GetStringValue() != "completed" {
		return ""
	}
	return f["task"].GetStructValue().GetFields()["task_id"].GetStringValue()
}

func (a *agentState) wake(source, sourceID string, waitIDs []string) []*journal.Event {
	before := a.woken
	if before == nil && a.turn != nil {
		before = a.turn.told // it comes back if the turn fails
	}
	if before != nil {
		if len(before.GetWaitIds()) == 0 || len(waitIDs) == 0 {
			waitIDs = nil
		} else {
			waitIDs = slices.Compact(slices.Sorted(slices.Values(slices.Concat(before.GetWaitIds(), waitIDs))))
		}
	}
	return []*journal.Event{{
		Namespace: a.namespace, AgentID: a.rec.GetAgentId(),
		Payload: &agentv1.AgentWoken{Source: source, SourceId: sourceID, Coalesced: a.woken != nil, WaitIds: waitIDs},
	}}
}

// firstItemMade notes the first item of a private child: the one that its
// delegation is about (SPEC A3).
func (a *agentState) firstItemMade(namespace, itemID string) []*journal.Event {
	if a.firstItem != "" || a.rec.GetVisibility() != agentv1.Visibility_VISIBILITY_PRIVATE {
		return nil
	}
	return []*journal.Event{{
		Namespace: namespace, AgentID: a.rec.GetAgentId(), WorkItemID: itemID, Payload: &agentv1.FirstItemNoted{WorkItemId: itemID},
	}}
}

// taskResult goes to the item that the task was started for, whatever the
// agent has in focus by then (SPEC T5).
func taskResult(t *taskv1.Task, tail string) *agentv1.Message {
	var b strings.Builder
	if t.GetKind() == taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK {
		// What the child handed over is the result, whole; the parent reads no
		// more of it than that (SPEC A2).
		fmt.Fprintf(&b, "Child agent %s (task %s) %s: %s", t.GetChildAgentId(), t.GetTaskId(), lower(t.GetState().String(), "TASK_STATE_"), t.GetLabel())
		if tail != "" {
			fmt.Fprintf(&b, "\nIts result:\n%s", tail)
		}
		return &agentv1.Message{
			Kind: agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT, Origin: agentv1.Origin_ORIGIN_TASK, Text: b.String(),
			CausationId: t.GetTaskId(), TaskId: t.GetTaskId(), WorkItemId: t.GetWorkItemId(), CorrelationId: t.GetDelegationId(),
		}
	}
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
		CausationId: fmt.Sprintf("%s/%d", t.GetTimerId(), t.GetFireCount()), CorrelationId: t.GetTimerId(), WorkItemId: t.GetWorkItemId(),
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
