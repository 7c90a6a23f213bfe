package contexts

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// A timer that fired again and again while its message waited says how often; it and its trigger
// can be read by id (SPEC C7.3, P4.2, P3.4).
func TestC7_ATimerSaysHowOftenItFired(t *testing.T) {
	w := newWorld(t)
	must.Value(w.Agents.PauseAgent(w.ctx(), &agentv1.PauseAgentRequest{AgentId: w.agent}))(t)
	waiting := waitingv1.NewWaitingServiceClient(w.Conn())
	id := must.Value(waiting.CreateTimer(w.ctx(), &waitingv1.CreateTimerRequest{
		AgentId: w.agent, Description: "look at the disk", Every: duration(time.Second), Count: 3,
	}))(t).GetTimer().GetTimerId()
	require.Eventually(t, func() bool {
		got := must.Value(waiting.GetTimer(w.ctx(), &waitingv1.GetTimerRequest{AgentId: w.agent, TimerId: id}))(t)
		return got.GetTimer().GetFireCount() == 3
	}, time.Minute, 20*time.Millisecond)
	must.Value(w.Agents.ResumeAgent(w.ctx(), &agentv1.ResumeAgentRequest{AgentId: w.agent}))(t)
	turn := w.next()
	require.Contains(t, turn.section("Why this turn"), "Timer "+id+" (look at the disk) fired 3 times while this "+
		"message waited")
	turn.finish()
	require.Nil(t, w.tryNext(300*time.Millisecond), "one message stands for all")

	trigger := must.Value(waiting.CreateExternalTrigger(w.ctx(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: w.agent, Description: "CI",
	}))(t)
	got := must.Value(waiting.GetExternalTrigger(w.ctx(), &waitingv1.GetExternalTriggerRequest{
		AgentId: w.agent, TriggerId: trigger.GetTrigger().GetTriggerId(),
	}))(t)
	require.Equal(t, "CI", got.GetTrigger().GetDescription())
	require.Empty(t, got.GetTrigger().GetTokenHash())
	must.Fail(waiting.GetTimer(w.ctx(), &waitingv1.GetTimerRequest{
		AgentId: w.agent, TimerId: "tmr_00000000000000000000000000",
	}))(t, "has no timer")
}
