package waiting

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// Who ended a wait is named, whether he did so here or by what another plane
// tells of; the end of a task is nobody's act (SPEC X4, W11).
func TestX4_AWaitsEndHasTheActorOfItsCause(t *testing.T) {
	r := newRig(t)
	works := r.journals.NewWriter(t, "work", workv1.File_quartet_work_v1_work_event_proto)
	agents := r.journals.NewWriter(t, "agent", agentv1.File_quartet_agent_v1_agent_event_proto)
	tasks := r.journals.NewWriter(t, "task", taskv1.File_quartet_task_v1_task_event_proto)
	operator := journal.Actor{Namespace: "acme", Principal: "ann", Role: rpc.RoleOperator}
	keeper := journal.Actor{
		Namespace: "acme", Principal: "agent/keeper", Role: rpc.RoleAgent, AgentID: "keeper", RunID: "run_1",
	}
	for name, c := range map[string]struct {
		wait *waitingv1.WaitForRequest
		say  func(w *waitingv1.Wait)
		end  string
		want journal.Actor
	}{
		"the agent clears the blocker": {
			&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA},
			func(w *waitingv1.Wait) {
				works.WriteAs(keeper, &journal.Event{
					AgentID: "keeper", WorkItemID: itemA,
					Payload: &workv1.WorkItemUpdated{EndedWaitId: w.GetWaitId()},
				})
			}, "wait_cancelled", keeper,
		},
		"an operator answers": {
			&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA},
			func(*waitingv1.Wait) {
				agents.WriteAs(operator, &journal.Event{AgentID: "keeper", Payload: &agentv1.MessageQueued{
					Message: &agentv1.Message{
						MessageId: "msg_1", Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, WorkItemId: itemA,
					},
				}})
			}, "wait_resolved", operator,
		},
		"an operator stops the task": {
			&waitingv1.WaitForRequest{Wake: taskResult, Resource: taskX, WorkItemId: itemA},
			func(*waitingv1.Wait) {
				tasks.WriteAs(operator, &journal.Event{AgentID: "keeper", Payload: &taskv1.TaskCancelled{
					Task: &taskv1.Task{TaskId: taskX, AgentId: "keeper"},
				}})
			}, "wait_resolved",
			journal.Actor{Namespace: "acme", Principal: "quartet", Role: rpc.RoleService},
		},
	} {
		w := r.waitFor(c.wait).GetWait()
		before := len(r.events())
		c.say(w)
		r.eventually(func() bool { return slices.Contains(r.since(before), c.end) })
		for _, ev := range r.events()[before:] {
			require.Equal(t, c.want, journal.Actor{
				Namespace: ev.Namespace, Principal: ev.Principal, Role: ev.Role,
				AgentID: ev.ActorAgentID, RunID: ev.ActorRunID,
			}, "%s: %s", name, ev.Type)
		}
		require.NotEmpty(t, planetest.Types(r.events()[before:]))
	}
}
