package control

import (
	"context"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/lane"
	"quartet/services/agent/state"
)

// StopAgent ends the open turn and lets the agent accept nothing but operators' input and
// task results until StartAgent (SPEC A8). The message of the turn is queued again, and
// the attempt is not counted: nothing failed.
func (s *Service) StopAgent(ctx context.Context, req *agentv1.StopAgentRequest) (*agentv1.StopAgentResponse, error) {
	o := order{req.GetAgentId(), req.GetRequestId(), req.GetReason()}
	a, err := s.execute(ctx, "StopAgent", o, req, func(a *state.Agent, env journal.Env) ([]*journal.Event, error) {
		return stop(a, env, o.reason), nil
	})
	if err != nil {
		return nil, err
	}
	return &agentv1.StopAgentResponse{Agent: a}, nil
}

func stop(a *state.Agent, env journal.Env, reason string) []*journal.Event {
	if a.Record.GetControl() == agentv1.Control_CONTROL_STOPPED {
		return nil
	}
	var events []*journal.Event
	if a.OpenTurn != nil {
		events = a.EndTurn(env, state.Ending{
			State: agentv1.TurnState_TURN_STATE_INTERRUPTED, Reason: agentv1.TurnEndReason_TURN_END_REASON_OPERATOR_STOPPED, Message: reason, Requeue: true, Uncounted: true, DropTick: true,
		}, nil)
	}
	// A tick is a proposal of the scheduler, which makes another one after the start if
	// it is still due.
	if t := a.Lane.Get(a.PendingTick); t.GetState() == agentv1.MessageState_MESSAGE_STATE_QUEUED {
		events = append(events, lane.Dropped(t, env, "agent_stopped"))
	}
	r := a.WithoutOpenTurn(a.WithControl(env, agentv1.Control_CONTROL_STOPPED, reason))
	return append(events, state.AgentEvent(r, &agentv1.AgentStopped{Agent: r}))
}

// StartAgent ends a stop or a pause. It starts no turn by itself and runs no task again
// (SPEC A8).
func (s *Service) StartAgent(ctx context.Context, req *agentv1.StartAgentRequest) (*agentv1.StartAgentResponse, error) {
	o := order{req.GetAgentId(), req.GetRequestId(), req.GetReason()}
	a, err := s.execute(ctx, "StartAgent", o, req, func(a *state.Agent, env journal.Env) ([]*journal.Event, error) {
		return start(a, env, o.reason), nil
	})
	if err != nil {
		return nil, err
	}
	return &agentv1.StartAgentResponse{Agent: a}, nil
}

func start(a *state.Agent, env journal.Env, reason string) []*journal.Event {
	if a.Record.GetControl() == agentv1.Control_CONTROL_RUNNING {
		return nil
	}
	r := a.WithControl(env, agentv1.Control_CONTROL_RUNNING, reason)
	return []*journal.Event{state.AgentEvent(r, &agentv1.AgentStarted{Agent: r})}
}
