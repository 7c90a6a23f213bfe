package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// TestD6_AChosenReminderIsACandidate has more blocked items than a queue shows, of which one
// that it does not show is chosen for its reminder.
func TestD6_AChosenReminderIsACandidate(t *testing.T) {
	f := facts(isBlocked(item("shown", blocked)), recheckIn(item("due", blocked), -time.Second),
		recheckIn(item("later", blocked), time.Hour))
	chosen := map[string]bool{}
	for _, c := range candidates(Plan(f), f) {
		chosen[c.GetWorkItemId()] = c.GetChosen()
	}
	require.Equal(t, map[string]bool{"shown": false, "due": true}, chosen)
}

// TestA14_ExplainNamesTheChain explains a parent that waits for a child that asks something, and
// the child.
func TestA14_ExplainNamesTheChain(t *testing.T) {
	waits := func(kind waitingv1.WaitKind, resource, reason string) Facts {
		return facts(isBlocked(item("wi_1", blocked, &workv1.AttachedWait{
			Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: kind, Resource: resource, Reason: reason,
		})))
	}
	parent := waits(waitingv1.WaitKind_WAIT_KIND_TASK, "tsk_1", "the door")
	require.Contains(t, sentence(Plan(parent), parent), "waits for task tsk_1, since an unknown time: the door")
	parent.Agent.AskingChildren = []*agentv1.Delegation{
		{ChildAgentId: "agt_2", TaskId: "tsk_2", Questions: []*agentv1.ChildQuestion{{Text: "What?"}}},
		{ChildAgentId: "agt_1", TaskId: "tsk_1", Questions: []*agentv1.ChildQuestion{{Text: "Which colour?"}}},
	}
	chain := "waits for task tsk_1, whose child agt_1 asks: Which colour? (since an unknown time: the door)"
	require.Contains(t, sentence(Plan(parent), parent), chain)
	require.Equal(t, chain, candidates(Plan(parent), parent)[0].GetWaitingFor())
	own := []*waitingv1.Wait{{Kind: waitingv1.WaitKind_WAIT_KIND_TASK, Resource: "tsk_1", Reason: "the door"}}
	require.Equal(t, "; the agent itself "+chain, alsoWaits(own, parent))

	child := waits(waitingv1.WaitKind_WAIT_KIND_OPERATOR, "", "Which colour?")
	require.Contains(t, sentence(Plan(child), child),
		"waits for an operator's message, since an unknown time: Which colour?")
	child.Agent.Agent.SupervisorAgentId = "keeper"
	require.Contains(t, sentence(Plan(child), child),
		"waits for its supervisor keeper, since an unknown time: Which colour?")
}
