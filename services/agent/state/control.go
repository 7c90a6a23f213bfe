package state

import (
	"cmp"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"
	"quartet/services/agent/lane"
	"quartet/services/agent/text"
	"quartet/services/agent/tools"
)

// commanded finds an agent that the caller may give orders to. A private child
// takes them from its supervisor and from an administrator, a public agent from
// operators; nobody from itself (SPEC A2, X15).
func (s *State) Controllable(actor journal.Actor, agentID string) (*Agent, error) {
	a, err := s.Find(actor.Namespace, agentID)
	if err != nil {
		return nil, err
	}
	private := a.Record.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE
	switch actor.Role {
	case rpc.RoleAdmin, rpc.RoleService:
		return a, nil
	case rpc.RoleOperator:
		if !private {
			return a, nil
		}
	case rpc.RoleAgent:
		if private && a.Record.GetSupervisorAgentId() == actor.AgentID {
			return a, nil
		}
	}
	if private {
		return nil, fault.PermissionDenied.Newf("agent %q is private: its supervisor %q controls it, by its task, or an administrator", agentID, a.Record.GetSupervisorAgentId()).
			With("agent_id", agentID)
	}
	return nil, fault.PermissionDenied.Newf("agents do not control agent %q; an operator does", agentID).With("agent_id", agentID)
}

// alive is commanded for orders that a deleted agent cannot follow.
func (s *State) ControllableActive(actor journal.Actor, agentID string) (*Agent, error) {
	a, err := s.Controllable(actor, agentID)
	if err != nil {
		return nil, err
	}
	return a, a.CheckActive()
}

// lives says whether an agent is neither deleted nor about to be.
func (a *Agent) IsActive() bool {
	return a.Record.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_ACTIVE
}

// gone refuses what cannot be done for an agent that is deleted, or about to be.
func (a *Agent) CheckActive() error {
	if a.IsActive() {
		return nil
	}
	return fault.AgentDeleted.Newf("agent %q is %s; its id is never used again", a.Record.GetAgentId(), text.EnumName(a.Record.GetLifecycle())).
		With("agent_id", a.Record.GetAgentId())
}

// ordered is the agent after an order, written once more.
func (a *Agent) WithControl(env journal.Env, c agentv1.Control, reason string) *agentv1.Agent {
	r := proto.CloneOf(a.Record)
	r.Control, r.ControlBy, r.ControlAt, r.ControlReason = c, env.Actor.Principal, timestamppb.New(env.Now), reason
	r.Revision++
	r.UpdatedAt = r.GetControlAt()
	return r
}

// withoutTurn is the agent after its open turn has ended in the same frame.
func (a *Agent) WithoutOpenTurn(r *agentv1.Agent) *agentv1.Agent {
	if a.OpenTurn != nil {
		r.CurrentRunId, r.CurrentTurnId, r.LastTurnId = "", "", a.OpenTurn.Record.GetTurnId()
	}
	return r
}

// applyOrder folds an order in. What turns say of the agent is theirs.
func (a *Agent) applyControl(n *agentv1.Agent) {
	a.edit(func(r *agentv1.Agent) {
		r.Lifecycle = n.GetLifecycle()
		r.Control, r.ControlBy, r.ControlAt, r.ControlReason = n.GetControl(), n.GetControlBy(), n.GetControlAt(), n.GetControlReason()
		r.Revision, r.UpdatedAt = n.GetRevision(), n.GetUpdatedAt()
	})
}

func AgentEvent(a *agentv1.Agent, payload proto.Message) *journal.Event {
	return &journal.Event{AgentID: a.GetAgentId(), Payload: payload}
}

// takeDown takes an agent out of service. end is what came of a child; of a
// public agent nobody waits for that.
func (a *Agent) BeginDeletion(env journal.Env, reason string, end *agentv1.AgentDeleting) []*journal.Event {
	var events []*journal.Event
	if a.OpenTurn != nil {
		events = a.EndTurn(env, Ending{State: agentv1.TurnState_TURN_STATE_ABORTED, Reason: agentv1.TurnEndReason_TURN_END_REASON_AGENT_DELETED, Message: reason}, nil)
	}
	for m := range a.Lane.Queued() {
		events = append(events, lane.Dropped(m, env, reasonAgentDeleted))
	}
	r := a.WithoutOpenTurn(a.WithControl(env, a.Record.GetControl(), cmp.Or(reason, reasonAgentDeleted)))
	r.Lifecycle = agentv1.Lifecycle_LIFECYCLE_DELETING
	next := &agentv1.AgentDeleting{Agent: r}
	if a.Record.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE {
		next.Outcome, next.ResultSummary, next.WorkItemId = end.GetOutcome(), end.GetResultSummary(), a.firstItem
	}
	ev := AgentEvent(r, next)
	ev.Namespace = a.Namespace
	return append(events, ev)
}

// deleted is the last write of an agent's record.
func (a *Agent) FinishDeletion(env journal.Env) []*journal.Event {
	r := a.WithControl(env, a.Record.GetControl(), a.Record.GetControlReason())
	r.ControlBy, r.ControlAt = a.Record.GetControlBy(), a.Record.GetControlAt()
	r.Lifecycle, r.UpdatedAt = agentv1.Lifecycle_LIFECYCLE_DELETED, timestamppb.New(env.Now)
	return []*journal.Event{AgentEvent(r, &agentv1.AgentDeleted{Agent: r})}
}

// forget keeps the record of a deleted agent and its delegations, and nothing
// that only grows: its messages and turns are in the event stream.
func (s *State) evictDeleted(a *Agent) {
	for _, t := range a.EndedTurns {
		s.forgetRequest(a, t.Record)
	}
	a.Lane = lane.Lane{}
	a.EndedTurns, a.Decisions, a.AnsweredTasks, a.Wake, a.PendingTick, a.InheritedContext = nil, nil, nil, nil, "", ""
}

// spawner is the agent on whose behalf another is made: alive, with the tool
// family that it takes, and in its open run if a run asks.
func (s *State) Spawner(actor journal.Actor, agentID string, family agentv1.ToolFamily) (*Agent, error) {
	p, err := s.Find(actor.Namespace, agentID)
	if err != nil {
		return nil, err
	}
	if err := p.CheckActive(); err != nil {
		return nil, err
	}
	if !tools.Profile(p.Record.GetToolFamilies()).Has(family) {
		return nil, fault.ToolNotAvailable.Newf("agent %q may not make agents like this: its profile lacks %s", agentID, text.EnumName(family)).
			With("tool", tools.ToolSpawnAgent).With("agent_id", agentID)
	}
	if actor.RunID != "" && actor.RunID != p.Record.GetCurrentRunId() {
		return nil, fault.RunStale.Newf("run %s no longer holds agent %s; its credential ended with it", actor.RunID, agentID).With("run_id", actor.RunID)
	}
	return p, nil
}
