package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

func said(payload proto.Message) *journal.Event {
	return &journal.Event{Namespace: "acme", AgentID: "keeper", Payload: payload}
}

// A task's result is one message, however often it is heard, for the item that
// the task was started for (SPEC T5).
func TestT5_ATaskResultIsOneMessage(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	task := &taskv1.Task{
		TaskId: "tsk_1", AgentId: "keeper", WorkItemId: "wi_a", Label: "make test",
		State: taskv1.TaskState_TASK_STATE_FAILED, ExitCode: proto.Int32(2), EndMessage: "exit status 2",
	}
	for range 2 {
		r.hear(said(&taskv1.TaskFailed{Task: task, OutputTail: "FAIL"}))
	}
	require.EqualValues(t, 1, r.facts("keeper").GetQueued())
	m := r.take("keeper").GetMessage()
	require.Equal(t, agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT, m.GetKind())
	require.Equal(t, agentv1.Authority_AUTHORITY_RUNTIME_INSTRUCTION, m.GetAuthority())
	require.Equal(t, "wi_a", m.GetWorkItemId())
	require.Equal(t, "tsk_1", m.GetTaskId())
	require.Equal(t, "Task tsk_1 failed: make test (exit code 2)\nexit status 2\nEnd of its output:\nFAIL", m.GetText())
	r.hear(said(&taskv1.TaskFailed{Task: task}))
	require.Zero(t, r.facts("keeper").GetQueued(), "not while it is being worked on")

	for i, payload := range []proto.Message{
		&taskv1.TaskCompleted{Task: &taskv1.Task{TaskId: "tsk_2"}}, &taskv1.TaskCancelled{
			Task: &taskv1.Task{TaskId: "tsk_3"},
		}, &taskv1.TaskInterrupted{Task: &taskv1.Task{TaskId: "tsk_4"}},
	} {
		r.hear(said(payload))
		require.EqualValues(t, i+1, r.facts("keeper").GetQueued())
	}
	// Nobody to tell is no error.
	r.hear(&journal.Event{Namespace: "acme", AgentID: "nobody", Payload: &taskv1.TaskCompleted{
		Task: &taskv1.Task{TaskId: "tsk_5"},
	}})
	r.hear(&journal.Event{Namespace: "umbrella", AgentID: "keeper", Payload: &taskv1.TaskCompleted{
		Task: &taskv1.Task{TaskId: "tsk_6"},
	}})
	require.EqualValues(t, 3, r.facts("keeper").GetQueued())
}

func TestP4_ATimerIsOneTickAFire(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	fired := &waitingv1.TimerFired{Timer: &waitingv1.Timer{
		TimerId: "tmr_1", Description: "look at CI", WorkItemId: "wi_a", FireCount: 1,
	}}
	r.hear(said(fired))
	r.hear(said(fired))
	require.EqualValues(t, 1, r.facts("keeper").GetQueued())
	m := r.take("keeper").GetMessage()
	require.Equal(t, agentv1.MessageKind_MESSAGE_KIND_TIMER_TICK, m.GetKind())
	require.Equal(t, "Timer tmr_1 fired: look at CI", m.GetText())
	require.Equal(t, "wi_a", m.GetWorkItemId())
	second := proto.CloneOf(fired)
	second.Timer.FireCount = 2
	r.hear(said(second))
	require.EqualValues(t, 1, r.facts("keeper").GetQueued(), "the next fire is another tick")

	// Nobody looks: the ticks of a timer are one, those of another are its own (SPEC P7).
	for n := int64(3); n < 10; n++ {
		late := proto.CloneOf(fired)
		late.Timer.FireCount = n
		r.hear(said(late))
	}
	require.EqualValues(t, 1, r.facts("keeper").GetQueued())
	other := proto.CloneOf(fired)
	other.Timer.TimerId = "tmr_2"
	r.hear(said(other))
	require.EqualValues(t, 2, r.facts("keeper").GetQueued())
}

func TestP2_ContentfulDeliveriesBecomeEvidence(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	trigger := &waitingv1.Trigger{TriggerId: "trg_1", WorkItemId: "wi_a"}
	for _, c := range []struct {
		delivery, body string
		text           string
		data           string
	}{
		{"dlv_1", `{"ok":true}`, `{"ok":true}`, ""},
		{"dlv_2", "", "Trigger trg_1 was called without a body", ""},
		{"dlv_3", "\xff\xfe", "", "\xff\xfe"},
		{"dlv_4", "a\x00b", "", "a\x00b"},
	} {
		ev := &waitingv1.TriggerDelivered{
			Trigger: trigger, DeliveryId: c.delivery, Contentful: true,
			Body: []byte(c.body), ContentType: "application/json",
		}
		r.hear(said(ev))
		r.hear(said(ev))
		a := r.take("keeper")
		m := a.GetMessage()
		require.Equal(t, agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT, m.GetKind())
		require.Equal(t, agentv1.Authority_AUTHORITY_EXTERNAL_EVIDENCE, m.GetAuthority(), "never instruction")
		require.Equal(t, c.text, m.GetText())
		require.Equal(t, c.data, string(m.GetData()))
		require.Equal(t, "trg_1", m.GetCorrelationId())
		r.finish(a, done)
		require.True(t, r.poll("keeper").GetPending())
	}
}

// Wakes of a busy agent coalesce and the last one is not lost (SPEC P7).
func TestP7_WakesCoalesce(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	wake := said(&waitingv1.TriggerDelivered{Trigger: &waitingv1.Trigger{TriggerId: "trg_1"}, WakeAgent: true})
	r.hear(wake)
	require.True(t, r.facts("keeper").GetWakeHint())
	require.Equal(t, "trg_1", r.facts("keeper").GetWakeHintSource())
	r.send("keeper", "x", normal)
	a := r.take("keeper")
	require.False(t, r.facts("keeper").GetWakeHint(), "a turn that begins is awake")
	r.hear(wake)
	r.hear(wake)
	events := r.events()
	require.True(t, events[len(events)-1].Payload.(*agentv1.AgentWoken).GetCoalesced())
	r.finish(a, done)
	require.True(t, r.facts("keeper").GetWakeHint(), "what came while it was busy")
	require.Zero(t, r.facts("keeper").GetQueued(), "a hint is no message")
	r.restart()
	require.True(t, r.facts("keeper").GetWakeHint())
}

// What wakes an agent that waited by itself.
func TestP1_ResolvedAgentWaits(t *testing.T) {
	for cause, wakes := range map[waitingv1.WaitCause]bool{
		waitingv1.WaitCause_WAIT_CAUSE_TIMER: true, waitingv1.WaitCause_WAIT_CAUSE_TASK_RESULT_PRESENT: true,
		waitingv1.WaitCause_WAIT_CAUSE_TASK_RESULT: false, waitingv1.WaitCause_WAIT_CAUSE_OPERATOR_INPUT: false,
	} {
		for item, own := range map[string]bool{"": true, "wi_a": false} {
			r := newRig(t)
			r.spawn("keeper")
			r.hear(said(&waitingv1.WaitResolved{Wait: &waitingv1.Wait{WaitId: "wt_1", WorkItemId: item}, Cause: cause}))
			require.Equal(t, wakes && own, r.facts("keeper").GetWakeHint(), "%s of item %q", cause, item)
		}
	}
}

// The journals of the other planes are followed, and across a restart nothing is
// heard twice.
func TestX14_OtherPlanesAreHeardOnce(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	tasks := r.journals.NewWriter(t, "task", taskv1.File_quartet_task_v1_task_event_proto)
	waits := r.journals.NewWriter(t, "waiting", waitingv1.File_quartet_waiting_v1_waiting_event_proto)
	tasks.Write(said(&taskv1.TaskQueued{Task: &taskv1.Task{TaskId: "tsk_1"}}),
		said(&taskv1.TaskCompleted{Task: &taskv1.Task{TaskId: "tsk_1"}}))
	r.eventually(func() bool { return r.facts("keeper").GetQueued() == 1 })
	r.restart()
	waits.Write(said(&waitingv1.TimerFired{Timer: &waitingv1.Timer{TimerId: "tmr_1", FireCount: 1}}))
	r.eventually(func() bool { return r.facts("keeper").GetQueued() == 2 })
	queued := 0
	for _, ev := range r.events() {
		if ev.Type == "message_queued" {
			queued++
		}
	}
	require.Equal(t, 2, queued)
}
