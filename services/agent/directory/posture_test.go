package directory

import (
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// The agent's posture is the first whose condition holds; waits of queued items do not
// count while the agent has an item in focus (SPEC A4).
func TestA4_Posture(t *testing.T) {
	agent := func(c agentv1.Control, turn string) *agentv1.Agent {
		return &agentv1.Agent{Control: c, CurrentTurnId: turn}
	}
	const runs = agentv1.Control_CONTROL_RUNNING
	state := func(s workv1.SchedulingState, r workv1.Readiness) *workv1.WorkItem {
		return &workv1.WorkItem{WorkItemId: "wi_1", SchedulingState: s, Readiness: r}
	}
	const blocked, asking = workv1.Readiness_READINESS_BLOCKED, workv1.Readiness_READINESS_WAITING_FOR_OPERATOR
	task := state(workv1.SchedulingState_SCHEDULING_STATE_WAITING_TASK, blocked)
	timer := state(workv1.SchedulingState_SCHEDULING_STATE_WAITING_TIMER, blocked)
	operator := state(workv1.SchedulingState_SCHEDULING_STATE_WAITING_OPERATOR, asking)
	stuck := state(workv1.SchedulingState_SCHEDULING_STATE_BLOCKED, blocked)
	runnable := state(workv1.SchedulingState_SCHEDULING_STATE_RUNNABLE, workv1.Readiness_READINESS_RUNNABLE)
	for name, c := range map[string]struct {
		agent *agentv1.Agent
		lane  *agentv1.Lane
		queue *workv1.GetWorkQueueResponse
		want  string
	}{
		"stopped beats a turn": {agent(agentv1.Control_CONTROL_STOPPED, "trn_1"), nil, nil, "STOPPED"},
		"paused beats a message": {
			agent(agentv1.Control_CONTROL_PAUSED, ""), &agentv1.Lane{Queued: 1}, nil,
			"PAUSED",
		},
		"a turn beats a message": {agent(runs, "trn_1"), &agentv1.Lane{Queued: 1}, nil, "RUNNING_TURN"},
		"a message beats work": {agent(runs, ""), &agentv1.Lane{Queued: 1}, &workv1.GetWorkQueueResponse{
			Current: runnable,
		}, "QUEUED_INPUT"},
		"work in focus": {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{
			Current: runnable, Blocked: []*workv1.WorkItem{task},
		}, "RUNNABLE_WORK"},
		"work in the queue": {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{
			Counts: &workv1.WorkQueueCounts{QueuedRunnable: 1}, Blocked: []*workv1.WorkItem{task},
		}, "RUNNABLE_WORK"},
		"the focus, not the queue": {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{
			Current: stuck, Blocked: []*workv1.WorkItem{task},
		}, "BLOCKED"},
		"a task before a time": {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{
			Blocked: []*workv1.WorkItem{timer, task},
		}, "WAITING_TASK"},
		"a time before an operator": {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{
			WaitingForOperator: []*workv1.WorkItem{operator}, Blocked: []*workv1.WorkItem{timer},
		}, "WAITING_EXTERNAL"},
		"an operator before a blocker": {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{
			WaitingForOperator: []*workv1.WorkItem{operator}, Blocked: []*workv1.WorkItem{stuck},
		}, "WAITING_OPERATOR"},
		"a blocker": {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{
			Blocked: []*workv1.WorkItem{stuck},
		}, "BLOCKED"},
		"nothing": {agent(runs, ""), nil, &workv1.GetWorkQueueResponse{}, "IDLE"},
	} {
		p, why := derivePosture(c.agent, c.lane, false, c.queue, nil, nil)
		require.Equal(t, "POSTURE_"+c.want, p.String(), name)
		require.NotEmpty(t, why)
	}
}

// Waits of the agent itself decide its posture while no item is in focus (SPEC A4).
func TestA4_PostureOfAnAgentThatWaitsByItself(t *testing.T) {
	a := &agentv1.Agent{Control: agentv1.Control_CONTROL_RUNNING}
	own := []*waitingv1.Wait{{Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Reason: "the world"}}
	p, why := derivePosture(a, &agentv1.Lane{}, false, &workv1.GetWorkQueueResponse{}, own, nil)
	require.Equal(t, agentv1.Posture_POSTURE_WAITING_EXTERNAL, p)
	require.Contains(t, why, "the world")
	p, _ = derivePosture(a, &agentv1.Lane{}, false, &workv1.GetWorkQueueResponse{}, nil, nil)
	require.Equal(t, agentv1.Posture_POSTURE_IDLE, p)
}
