package contexts

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// A timer that fired again and again while its message waited says how often; it and its trigger
// can be read by id (SPEC C7.3, P4.2, P3.4).
func TestC7_ATimerSaysHowOftenItFired(t *testing.T) {
	w := newWorld(t)
	_, err := w.Agents.PauseAgent(w.ctx(), &agentv1.PauseAgentRequest{AgentId: w.agent})
	require.NoError(t, err)
	waiting := waitingv1.NewWaitingServiceClient(w.Conn())
	made, err := waiting.CreateTimer(w.ctx(), &waitingv1.CreateTimerRequest{
		AgentId: w.agent, Description: "look at the disk", Every: duration(time.Second), Count: 3,
	})
	require.NoError(t, err)
	id := made.GetTimer().GetTimerId()
	require.Eventually(t, func() bool {
		got, err := waiting.GetTimer(w.ctx(), &waitingv1.GetTimerRequest{AgentId: w.agent, TimerId: id})
		require.NoError(t, err)
		return got.GetTimer().GetFireCount() == 3
	}, time.Minute, 20*time.Millisecond)
	_, err = w.Agents.ResumeAgent(w.ctx(), &agentv1.ResumeAgentRequest{AgentId: w.agent})
	require.NoError(t, err)
	turn := w.next()
	require.Contains(t, turn.section("Why this turn"), "Timer "+id+" (look at the disk) fired 3 times while this "+
		"message waited")
	turn.finish()
	require.Nil(t, w.tryNext(300*time.Millisecond), "one message stands for all")

	trigger, err := waiting.CreateExternalTrigger(w.ctx(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: w.agent, Description: "CI",
	})
	require.NoError(t, err)
	got, err := waiting.GetExternalTrigger(w.ctx(), &waitingv1.GetExternalTriggerRequest{
		AgentId: w.agent, TriggerId: trigger.GetTrigger().GetTriggerId(),
	})
	require.NoError(t, err)
	require.Equal(t, "CI", got.GetTrigger().GetDescription())
	require.Empty(t, got.GetTrigger().GetTokenHash())
	_, err = waiting.GetTimer(w.ctx(), &waitingv1.GetTimerRequest{
		AgentId: w.agent, TimerId: "tmr_00000000000000000000000000",
	})
	require.ErrorContains(t, err, "has no timer")
}
