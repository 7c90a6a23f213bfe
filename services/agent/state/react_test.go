package state

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// A message names what it is about: the item, and the task, the delegation, the timer, or the
// trigger with the waits that it reached and what it is for (SPEC A13.1).
func TestA13_MessagesNameWhatTheyAreAbout(t *testing.T) {
	s := NewState()
	require.NoError(t,
		s.Apply(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.AgentSpawned{
			Agent: &agentv1.Agent{
				AgentId: "keeper", Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE,
				Control: agentv1.Control_CONTROL_RUNNING,
			},
		}}))
	env := journal.Env{Now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	for name, c := range map[string]struct {
		event proto.Message
		want  *agentv1.Message
	}{
		"a delivery": {
			&waitingv1.TriggerDelivered{
				Contentful: true, DeliveryId: "dlv_1", Body: []byte("green"),
				WaitIds: []string{"wt_1", "wt_2"}, Trigger: &waitingv1.Trigger{
					TriggerId: "trg_1", WorkItemId: "wi_1", Description: "CI reports",
				},
			},
			&agentv1.Message{
				WorkItemId: "wi_1", TriggerId: "trg_1", WaitIds: []string{"wt_1", "wt_2"},
				SourceDescription: "CI reports",
			},
		},
		"a timer": {
			&waitingv1.TimerFired{Timer: &waitingv1.Timer{
				TimerId: "tmr_1", WorkItemId: "wi_1", Description: "look at the disk", FireCount: 1,
			}},
			&agentv1.Message{WorkItemId: "wi_1", TimerId: "tmr_1", SourceDescription: "look at the disk"},
		},
		"a command": {
			&taskv1.TaskCompleted{
				Task: &taskv1.Task{TaskId: "tsk_1", WorkItemId: "wi_1", Kind: taskv1.TaskKind_TASK_KIND_COMMAND_TASK},
			},
			&agentv1.Message{WorkItemId: "wi_1", TaskId: "tsk_1"},
		},
		"a child": {
			&taskv1.TaskCompleted{
				Task: &taskv1.Task{
					TaskId: "tsk_2", WorkItemId: "wi_1",
					Kind: taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK, DelegationId: "dlg_1",
				},
			},
			&agentv1.Message{WorkItemId: "wi_1", TaskId: "tsk_2", DelegationId: "dlg_1"},
		},
	} {
		events := must.Value(React(s, env, &journal.Event{Namespace: "acme", AgentID: "keeper", Payload: c.event}))(t)
		queued, ok := journal.Find[*agentv1.MessageQueued](events)
		require.True(t, ok, name)
		m := queued.GetMessage()
		got := &agentv1.Message{
			WorkItemId: m.GetWorkItemId(), TaskId: m.GetTaskId(), TriggerId: m.GetTriggerId(), TimerId: m.GetTimerId(),
			DelegationId: m.GetDelegationId(),
			WaitIds:      m.GetWaitIds(), SourceDescription: m.GetSourceDescription(),
		}
		require.True(t, proto.Equal(c.want, got), "%s: %v", name, got)
	}

	// The ends of the agent's own waits are remembered until a turn has shown them.
	for i, id := range []string{"wt_1", "wt_2"} {
		events := must.Value(React(s, env, &journal.Event{
			Namespace: "acme", AgentID: "keeper",
			Payload: &waitingv1.WaitResolved{
				Wait: &waitingv1.Wait{WaitId: id, AgentId: "keeper"}, Cause: waitingv1.WaitCause_WAIT_CAUSE_TIMER,
			},
		}))(t)
		woken, ok := journal.Find[*agentv1.AgentWoken](events)
		require.True(t, ok)
		require.Equal(t, []string{"wt_1", "wt_2"}[:i+1], woken.GetEndedWaitIds())
		require.NoError(t, s.Apply(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: woken}))
	}
}
