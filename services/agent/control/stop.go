package control

import (
	"context"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/lane"
	"quartet/services/agent/state"
)

// StopAgent ends the open turn. Its message is queued again, and the attempt is not counted, since
// nothing failed; a tick is dropped instead, unless it is that of a reminder (see lane.OfferedAgain). Until
// StartAgent the agent starts no turns. Operators' prompts, supervisors' follow-ups and what other planes report,
// such as a task's result, are still queued; any other message is refused with AGENT_STOPPED (SPEC A8).
func (s *Service) StopAgent(ctx context.Context, req *agentv1.StopAgentRequest) (*agentv1.StopAgentResponse, error) {
	return execute(ctx, s, "StopAgent", req, stop, func(a *agentv1.Agent) *agentv1.StopAgentResponse {
		return &agentv1.StopAgentResponse{Agent: a}
	})
}

func stop(a *state.Agent, env journal.Env, reason string) ([]*journal.Event, error) {
	if a.Record.GetControl() == agentv1.Control_CONTROL_STOPPED {
		return nil, nil
	}
	var events []*journal.Event
	if a.OpenTurn != nil {
		events = a.EndTurn(env, state.Ending{
			State:  agentv1.TurnState_TURN_STATE_INTERRUPTED,
			Reason: agentv1.TurnEndReason_TURN_END_REASON_OPERATOR_STOPPED, Message: reason, Requeue: true,
			Uncounted: true, DropTick: true,
		}, nil)
	}
	if t := a.Lane.Get(a.PendingTick); t.GetState() == agentv1.MessageState_MESSAGE_STATE_QUEUED &&
		lane.OfferedAgain(t) {
		events = append(events, lane.Dropped(t, env, "agent_stopped"))
	}
	r := a.WithoutOpenTurn(a.WithControl(env, agentv1.Control_CONTROL_STOPPED, reason))
	return append(events, state.AgentEvent(r, &agentv1.AgentStopped{Agent: r})), nil
}

// StartAgent lets an agent run that was stopped or paused, so that runners get turns for queued messages
// again. It queues no message itself and restarts no task (SPEC A8).
func (s *Service) StartAgent(ctx context.Context, req *agentv1.StartAgentRequest) (*agentv1.StartAgentResponse, error) {
	return execute(ctx, s, "StartAgent", req, start, func(a *agentv1.Agent) *agentv1.StartAgentResponse {
		return &agentv1.StartAgentResponse{Agent: a}
	})
}

func start(a *state.Agent, env journal.Env, reason string) ([]*journal.Event, error) {
	if a.Record.GetControl() == agentv1.Control_CONTROL_RUNNING {
		return nil, nil
	}
	r := a.WithControl(env, agentv1.Control_CONTROL_RUNNING, reason)
	return []*journal.Event{state.AgentEvent(r, &agentv1.AgentStarted{Agent: r})}, nil
}
