package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// Triggers of the agent itself are shown in the turn that they caused, and count as
// consumed when that turn completes (SPEC P2).
func TestP2_TheAgentsOwnTriggersAreShown(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.others.set(func() {
		r.others.waits = []*waitingv1.Wait{
			{WaitId: "wt_own", Reason: "the build", TriggerCount: 3, ConsumedCount: 1, Triggered: true},
			{WaitId: "wt_item", WorkItemId: "wi_1", TriggerCount: 1, Triggered: true},
			{WaitId: "wt_quiet", TriggerCount: 1, ConsumedCount: 1},
		}
	})
	_, err := r.service.OfferDecision(r.scheduler(), &agentv1.OfferDecisionRequest{
		AgentId: "keeper", FactsRevision: r.facts("keeper").GetFactsRevision(),
		Decision: &agentv1.Decision{
			Action:     agentv1.DecisionAction_DECISION_ACTION_TICK,
			TickReason: agentv1.TickReason_TICK_REASON_WAKE_HINT, Reason: "agent_triggered",
		},
	})
	require.NoError(t, err)
	got := r.take("keeper")
	require.Contains(t, got.GetContext().GetText(), "Triggered 2 time(s): the build")
	require.Len(t, got.GetTurn().GetShownWaits(), 1)
	require.Equal(t, "wt_own", got.GetTurn().GetShownWaits()[0].GetWaitId())
	require.EqualValues(t, 3, got.GetTurn().GetShownWaits()[0].GetTriggerCount())
}
