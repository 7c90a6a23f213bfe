package agent

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

// operatorAborted is why an aborted turn ended, and why its agent is paused.
const operatorAborted = "operator_aborted"

// AbortRun cancels the running turn and nothing else: agent, items, waits and
// tasks stay. The message ends as aborted, not processed, and the agent is
// paused so that it does not take the same path again at once (SPEC A7).
func (s *Service) AbortRun(ctx context.Context, req *agentv1.AbortRunRequest) (*agentv1.AbortRunResponse, error) {
	if err := admitOrder(ctx, order{req.GetAgentId(), req.GetRequestId(), req.GetReason()}); err != nil {
		return nil, err
	}
	if req.GetRunId() != "" {
		if err := fault.ID("run_id", req.GetRunId(), "run_"); err != nil {
			return nil, err
		}
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *agentv1.AbortRunResponse]{
		Method: "AbortRun", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.AbortRunResponse], error) {
			return decideAbort(st, env, req)
		},
		Answer: func(events []*journal.Event) (*agentv1.AbortRunResponse, error) {
			resp := &agentv1.AbortRunResponse{Turn: endedTurn(events)}
			a, err := agentOf(events)
			resp.Agent = a
			return resp, err
		},
	})
}

func decideAbort(s *State, env journal.Env, req *agentv1.AbortRunRequest) (journal.Decision[*agentv1.AbortRunResponse], error) {
	var d journal.Decision[*agentv1.AbortRunResponse]
	a, err := s.alive(env.Actor, req.GetAgentId())
	if err != nil {
		return d, err
	}
	if guard := req.GetRunId(); guard != "" && a.rec.GetCurrentRunId() != guard {
		if n := len(a.turns); n > 0 && a.turn == nil {
			if last := a.turns[n-1].rec; last.GetRunId() == guard && last.GetState() == agentv1.TurnState_TURN_STATE_ABORTED {
				d.Reply = &agentv1.AbortRunResponse{Turn: last, Agent: a.rec} // it was aborted before
				return d, nil
			}
		}
		return d, fault.RunStale.Newf("run %q is not the open run of agent %q, which is %q; nothing was aborted", guard, req.GetAgentId(), a.rec.GetCurrentRunId()).
			With("run_id", guard).With("current_run_id", a.rec.GetCurrentRunId())
	}
	r := a.ordered(env, agentv1.Control_CONTROL_PAUSED, operatorAborted)
	if req.GetReason() != "" {
		r.ControlReason += ": " + req.GetReason()
	}
	if a.turn == nil {
		if a.rec.GetControl() != agentv1.Control_CONTROL_RUNNING {
			d.Reply = &agentv1.AbortRunResponse{Agent: a.rec}
			return d, nil
		}
		d.Events = []*journal.Event{agentEvent(r, &agentv1.AgentPaused{Agent: r})}
		return d, nil
	}
	d.Events = a.endEvents(env, ending{state: agentv1.TurnState_TURN_STATE_ABORTED, reason: operatorAborted, message: req.GetReason()}, nil)
	// A paused agent may finish the turn that was open when it was paused; its
	// abort is written all the same, since it says why the pause goes on.
	r = a.withoutTurn(r)
	d.Events = append(d.Events, agentEvent(r, &agentv1.AgentPaused{Agent: r}))
	return d, nil
}
