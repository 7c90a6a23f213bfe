package control

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/state"
)

// PauseAgent keeps an agent from starting turns; it still accepts input (SPEC A8). An open turn
// continues: AbortRun ends it.
func (s *Service) PauseAgent(ctx context.Context, req *agentv1.PauseAgentRequest) (*agentv1.PauseAgentResponse, error) {
	return execute(ctx, s, "PauseAgent", req, pause, func(a *agentv1.Agent) *agentv1.PauseAgentResponse {
		return &agentv1.PauseAgentResponse{Agent: a}
	})
}

// pause returns no events for an agent that is paused or stopped already.
func pause(a *state.Agent, env journal.Env, reason string) ([]*journal.Event, error) {
	if a.Record.GetControl() != agentv1.Control_CONTROL_RUNNING {
		return nil, nil
	}
	r := a.WithControl(env, agentv1.Control_CONTROL_PAUSED, reason)
	return []*journal.Event{state.AgentEvent(r, &agentv1.AgentPaused{Agent: r})}, nil
}

// ResumeAgent ends a pause, so that runners get turns for queued messages again. It changes nothing if the agent is
// neither paused nor stopped. A stopped agent is refused with AGENT_STOPPED (SPEC A8).
func (s *Service) ResumeAgent(ctx context.Context, req *agentv1.ResumeAgentRequest) (*agentv1.ResumeAgentResponse,
	error,
) {
	return execute(ctx, s, "ResumeAgent", req, resume, func(a *agentv1.Agent) *agentv1.ResumeAgentResponse {
		return &agentv1.ResumeAgentResponse{Agent: a}
	})
}

func resume(a *state.Agent, env journal.Env, reason string) ([]*journal.Event, error) {
	switch a.Record.GetControl() {
	case agentv1.Control_CONTROL_STOPPED:
		return nil, fault.AgentStopped.Newf("agent %q is stopped, not paused; StartAgent ends that",
			a.Record.GetAgentId()).With("agent_id", a.Record.GetAgentId())
	case agentv1.Control_CONTROL_PAUSED:
		r := a.WithControl(env, agentv1.Control_CONTROL_RUNNING, reason)
		return []*journal.Event{state.AgentEvent(r, &agentv1.AgentResumed{Agent: r})}, nil
	case agentv1.Control_CONTROL_RUNNING, agentv1.Control_CONTROL_UNSPECIFIED:
	}
	return nil, nil
}
