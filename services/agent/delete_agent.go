package agent

import (
	"cmp"
	"context"
	"quartet/services/agent/lane"
	"strconv"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// agentDeleted is why what belonged to a deleted agent ended.
const agentDeleted = "agent_deleted"

// DeleteAgent ends an agent for ever (SPEC A8). One frame takes it out of
// service: its turn, its lane, its lifecycle. What other planes hold for it, and
// its private descendants, end after that; the supervision sees to it, across
// crashes, until the lifecycle is deleted.
func (s *Service) DeleteAgent(ctx context.Context, req *agentv1.DeleteAgentRequest) (*agentv1.DeleteAgentResponse, error) {
	o := order{req.GetAgentId(), req.GetRequestId(), req.GetReason()}
	if err := admitOrder(ctx, o); err != nil {
		return nil, err
	}
	if req.GetExpectedRevision() < 0 {
		return nil, fault.Invalid("expected_revision", strconv.FormatInt(req.GetExpectedRevision(), 10), "must be 0 or a revision")
	}
	a, err := plane.Do(ctx, s.engine, plane.Command[*State, *agentv1.Agent]{
		Method: "DeleteAgent", AgentID: o.agentID, RequestID: o.requestID, Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.Agent], error) {
			var d journal.Decision[*agentv1.Agent]
			a, err := st.commanded(env.Actor, o.agentID)
			if err != nil {
				return d, err
			}
			d.Reply = a.rec
			if !a.lives() {
				return d, nil // a deletion is asked for once
			}
			if want := req.GetExpectedRevision(); want != 0 && want != a.rec.GetRevision() {
				return d, fault.RevisionConflict.Newf("agent %q is at revision %d, not %d; read it again and repeat", o.agentID, a.rec.GetRevision(), want).
					With("agent_id", o.agentID).With("current_revision", strconv.FormatInt(a.rec.GetRevision(), 10)).With("expected_revision", strconv.FormatInt(want, 10))
			}
			d.Events = a.takeDown(env, o.reason, &agentv1.AgentDeleting{Outcome: outcomeCancelled, ResultSummary: clipped(o.reason)})
			return d, nil
		},
		Answer: agentOf,
	})
	if err != nil {
		return nil, err
	}
	return &agentv1.DeleteAgentResponse{Agent: a}, nil
}

// takeDown takes an agent out of service. end is what came of a child; of a
// public agent nobody waits for that.
func (a *agentState) takeDown(env journal.Env, reason string, end *agentv1.AgentDeleting) []*journal.Event {
	var events []*journal.Event
	if a.turn != nil {
		events = a.endEvents(env, ending{state: agentv1.TurnState_TURN_STATE_ABORTED, reason: agentDeleted, message: reason}, nil)
	}
	for m := range a.lane.Queued() {
		events = append(events, lane.Dropped(m, env, agentDeleted))
	}
	r := a.withoutTurn(a.ordered(env, a.rec.GetControl(), cmp.Or(reason, agentDeleted)))
	r.Lifecycle = agentv1.Lifecycle_LIFECYCLE_DELETING
	next := &agentv1.AgentDeleting{Agent: r}
	if a.rec.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE {
		next.Outcome, next.ResultSummary, next.WorkItemId = end.GetOutcome(), end.GetResultSummary(), a.firstItem
	}
	ev := agentEvent(r, next)
	ev.Namespace = a.namespace
	return append(events, ev)
}

// deleted is the last write of an agent's record.
func (a *agentState) deleted(env journal.Env) []*journal.Event {
	r := a.ordered(env, a.rec.GetControl(), a.rec.GetControlReason())
	r.ControlBy, r.ControlAt = a.rec.GetControlBy(), a.rec.GetControlAt()
	r.Lifecycle, r.UpdatedAt = agentv1.Lifecycle_LIFECYCLE_DELETED, timestamppb.New(env.Now)
	return []*journal.Event{agentEvent(r, &agentv1.AgentDeleted{Agent: r})}
}

// forget keeps the record of a deleted agent and its delegations, and nothing
// that only grows: its messages and turns are in the event stream.
func (s *State) forget(a *agentState) {
	for _, t := range a.turns {
		s.unacquire(a, t.rec)
	}
	a.lane = lane.Lane{}
	a.turns, a.decisions, a.answered, a.woken, a.tick, a.inherited = nil, nil, nil, nil, "", ""
}
