package control

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/state"
)

// AbortRun ends the open turn as aborted and pauses the agent, so that it does not repeat
// the same turn at once (SPEC A7). An agent without an open turn is only paused. If the request
// names a run, it is refused with RUN_STALE unless that run is open or was the last one and was
// aborted. The agent's items, waits and tasks stay.
func (s *Service) AbortRun(ctx context.Context, req *agentv1.AbortRunRequest) (*agentv1.AbortRunResponse, error) {
	if err := validateOrder(req); err != nil {
		return nil, err
	}
	if req.GetRunId() != "" {
		if err := fault.ID("run_id", req.GetRunId(), "run_"); err != nil {
			return nil, err
		}
	}
	return plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.AbortRunResponse]{
		Frees: true, Method: "AbortRun", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.AbortRunResponse], error) {
			return decideAbort(st, env, req)
		},
		Answer: func(events []*journal.Event) (*agentv1.AbortRunResponse, error) {
			resp := &agentv1.AbortRunResponse{Turn: state.EndedTurn(events)}
			a, err := agentOf(events)
			resp.Agent = a
			return resp, err
		},
	})
}

func decideAbort(s *state.State, env journal.Env, req *agentv1.AbortRunRequest) (
	journal.Decision[*agentv1.AbortRunResponse], error,
) {
	var d journal.Decision[*agentv1.AbortRunResponse]
	a, err := s.ControllableActive(env.Actor, req.GetAgentId())
	if err != nil {
		return d, err
	}
	if guard := req.GetRunId(); guard != "" && a.Record.GetCurrentRunId() != guard {
		if a.OpenTurn == nil && a.EndedTurns.Len() > 0 {
			if last := a.EndedTurns.Last().Record; last.GetRunId() == guard &&
				last.GetState() == agentv1.TurnState_TURN_STATE_ABORTED {
				// it was aborted before
				d.Reply, d.Remember = &agentv1.AbortRunResponse{Turn: last, Agent: a.Record}, true
				return d, nil
			}
		}
		return d, fault.RunStale.Newf("run %q is not the open run of agent %q, which is %q; nothing was aborted", guard,
			req.GetAgentId(), a.Record.GetCurrentRunId()).
			With("run_id", guard).With("current_run_id", a.Record.GetCurrentRunId())
	}
	r := a.WithControl(env, agentv1.Control_CONTROL_PAUSED, state.ReasonOperatorAborted)
	if req.GetReason() != "" {
		r.ControlReason += ": " + req.GetReason()
	}
	if a.OpenTurn == nil {
		if a.Record.GetControl() != agentv1.Control_CONTROL_RUNNING {
			// A late repetition must not abort a turn of an agent that was resumed since (SPEC X2.5).
			d.Reply, d.Remember = &agentv1.AbortRunResponse{Agent: a.Record}, true
			return d, nil
		}
		d.Events = []*journal.Event{state.AgentEvent(r, &agentv1.AgentPaused{Agent: r})}
		return d, nil
	}
	d.Events = a.EndTurn(env, state.Ending{
		State:  agentv1.TurnState_TURN_STATE_ABORTED,
		Reason: agentv1.TurnEndReason_TURN_END_REASON_OPERATOR_ABORTED, Message: req.GetReason(),
	}, nil)
	// A paused agent may have an open turn. Its abort is recorded in control as well,
	// since it explains why the pause continues.
	r = a.WithoutOpenTurn(r)
	d.Events = append(d.Events, state.AgentEvent(r, &agentv1.AgentPaused{Agent: r}))
	return d, nil
}
