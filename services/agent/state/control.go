package state

import (
	"cmp"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/rpc"
	"quartet/services/agent/lane"
	"quartet/services/agent/tools"
)

// Controllable returns an agent if the caller may control it, otherwise PERMISSION_DENIED or NOT_FOUND.
// Administrators and services control all agents, operators the public ones, and an agent its private
// children; no agent controls itself (SPEC A2, X15).
func (s *State) Controllable(actor journal.Actor, agentID string) (*Agent, error) {
	a, err := s.Find(actor.Namespace, agentID)
	if err != nil {
		return nil, err
	}
	private := a.Record.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE
	switch actor.Role {
	case rpc.RoleInstallationAdmin, rpc.RoleAdmin, rpc.RoleService:
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
		return nil, fault.PermissionDenied.Newf("agent %q is private: its supervisor %q controls it, by its task, or "+
			"an administrator", agentID, a.Record.GetSupervisorAgentId()).
			With("agent_id", agentID)
	}
	return nil, fault.PermissionDenied.Newf("agents do not control agent %q; an operator does", agentID).
		With("agent_id", agentID)
}

// ControllableActive is Controllable, and returns AGENT_DELETED for an agent that is deleted or being deleted.
func (s *State) ControllableActive(actor journal.Actor, agentID string) (*Agent, error) {
	a, err := s.Controllable(actor, agentID)
	if err != nil {
		return nil, err
	}
	return a, a.CheckActive()
}

// IsActive reports whether an agent is neither deleted nor being deleted.
func (a *Agent) IsActive() bool {
	return a.Record.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_ACTIVE
}

// CheckActive returns AGENT_DELETED for an agent that is deleted or being deleted.
func (a *Agent) CheckActive() error {
	if a.IsActive() {
		return nil
	}
	return fault.AgentDeleted.Newf("agent %q is %s; its id is never used again", a.Record.GetAgentId(),
		pbjson.EnumText(a.Record.GetLifecycle())).
		With("agent_id", a.Record.GetAgentId())
}

// WithControl returns the agent's next record with a new control.
func (a *Agent) WithControl(env journal.Env, c agentv1.Control, reason string) *agentv1.Agent {
	r := proto.CloneOf(a.Record)
	r.Control, r.ControlBy, r.ControlAt, r.ControlReason = c, env.Actor.Principal, timestamppb.New(env.Now), reason
	r.Revision++
	r.UpdatedAt = r.GetControlAt()
	return r
}

// WithoutOpenTurn updates a record for an open turn that ends in the same frame. It
// changes and returns r.
func (a *Agent) WithoutOpenTurn(r *agentv1.Agent) *agentv1.Agent {
	if a.OpenTurn != nil {
		r.CurrentRunId, r.CurrentTurnId, r.LastTurnId = "", "", a.OpenTurn.Record.GetTurnId()
	}
	return r
}

// applyControl copies the fields that control actions set from n to the record. Fields that turns
// set keep their values.
func (a *Agent) applyControl(n *agentv1.Agent) {
	a.edit(func(r *agentv1.Agent) {
		r.Lifecycle = n.GetLifecycle()
		r.Control, r.ControlBy, r.ControlAt, r.ControlReason = n.GetControl(), n.GetControlBy(), n.GetControlAt(),
			n.GetControlReason()
		r.Revision, r.UpdatedAt = n.GetRevision(), n.GetUpdatedAt()
	})
}

// AgentEvent returns an event of an agent.
func AgentEvent(a *agentv1.Agent, payload proto.Message) *journal.Event {
	return &journal.Event{AgentID: a.GetAgentId(), Payload: payload}
}

// maxDropped is how many bytes the messages that one command drops have in the journal (lane.JournalBytes). A
// lane may have more than a command may write.
const maxDropped = 2 << 20

// DropQueued returns the events that drop queued messages of an agent that is being deleted, as many as fit maxDropped
// and one at least. It returns nil if none is queued.
func (a *Agent) DropQueued(env journal.Env) (events []*journal.Event) {
	room := maxDropped
	for m := range a.Lane.Queued() {
		if room -= lane.JournalBytes(m); room < 0 && len(events) > 0 {
			break
		}
		events = append(events, lane.Dropped(m, env, reasonAgentDeleted))
	}
	return events
}

// BeginDeletion returns the events that take an agent out of service: they end its turn
// and drop its messages, as many as DropQueued does at once. end has the outcome and the result of a private child,
// which its delegation reports; for a public agent it is ignored.
func (a *Agent) BeginDeletion(env journal.Env, reason string, end *agentv1.AgentDeleting) []*journal.Event {
	var events []*journal.Event
	if a.OpenTurn != nil {
		events = a.EndTurn(env, Ending{
			State:  agentv1.TurnState_TURN_STATE_ABORTED,
			Reason: agentv1.TurnEndReason_TURN_END_REASON_AGENT_DELETED, Message: reason,
		}, nil)
	}
	events = append(events, a.DropQueued(env)...)
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

// FinishDeletion returns the last event of an agent: that nothing of it is left.
func (a *Agent) FinishDeletion(env journal.Env) []*journal.Event {
	r := a.WithControl(env, a.Record.GetControl(), a.Record.GetControlReason())
	r.ControlBy, r.ControlAt = a.Record.GetControlBy(), a.Record.GetControlAt()
	r.Lifecycle, r.UpdatedAt = agentv1.Lifecycle_LIFECYCLE_DELETED, timestamppb.New(env.Now)
	return []*journal.Event{AgentEvent(r, &agentv1.AgentDeleted{Agent: r})}
}

// evictDeleted removes the messages, turns, decisions and summaries of a deleted agent from memory;
// they stay in the journal. Its record, its delegations and the positions of its rounds and
// briefs are kept, so that those can still be listed.
func (s *State) evictDeleted(a *Agent) {
	for t := range a.EndedTurns.Backward() {
		s.forgetRequest(a, t.Record)
	}
	a.Lane = lane.Lane{}
	a.EndedTurns, a.Decisions = EndedTurns{}, Decisions{}
	a.AnsweredTasks, a.Wake, a.PendingTick, a.InheritedContext = nil, nil, "", ""
	a.Conversation.summaries = nil
}

// Spawner returns the agent on whose behalf another one is spawned. It returns AGENT_DELETED if that
// agent is not active, TOOL_NOT_AVAILABLE if it lacks the tool family, and RUN_STALE if the caller
// acts in a run that is not the agent's open one.
func (s *State) Spawner(actor journal.Actor, agentID string, family agentv1.ToolFamily) (*Agent, error) {
	p, err := s.Find(actor.Namespace, agentID)
	if err != nil {
		return nil, err
	}
	if err := p.CheckActive(); err != nil {
		return nil, err
	}
	if !tools.Profile(p.Record.GetToolFamilies()).Has(family) {
		return nil, fault.ToolNotAvailable.Newf("agent %q may not make agents like this: its profile lacks %s", agentID,
			pbjson.EnumText(family)).
			With("tool", tools.ToolSpawnAgent).With("agent_id", agentID)
	}
	if actor.RunID != "" && actor.RunID != p.Record.GetCurrentRunId() {
		return nil, fault.RunStale.Newf("run %s no longer holds agent %s; its credential ended with it", actor.RunID,
			agentID).With("run_id", actor.RunID)
	}
	return p, nil
}
