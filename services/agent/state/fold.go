package state

import (
	"fmt"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

// Apply folds one event into the state. What it does with an event type is in eventRows; an event that it does not
// know is an error.
func (s *State) Apply(ev *journal.Event) error {
	k := plane.Key{Namespace: ev.Namespace, ID: ev.AgentID}
	a := s.agents.Edit(k)
	if p, ok := ev.Payload.(*agentv1.AgentSpawned); ok && a == nil {
		s.addAgent(k, &Agent{
			Namespace: ev.Namespace, Record: p.GetAgent(), FactsRevision: 1,
			InheritedContext: p.GetInherited(),
		})
		return nil
	}
	if a == nil {
		return fmt.Errorf("agent: %s for unknown agent %q", ev.Type, ev.AgentID)
	}
	row, err := eventRows.Of(ev)
	if err != nil {
		return err
	}
	s.removeReady(a)
	if err := row.fold(a, ev); err != nil {
		return err
	}
	if row.after != nil {
		row.after(s, a, ev)
	}
	for _, t := range a.EndedTurns.Forget(KeptTurns) {
		s.forgetRequest(a, t.Record)
	}
	a.FactsRevision++
	s.updateReady(a, ev.CreatedAt)
	return nil
}

// forgetRequest removes the request that got a turn from AcquiredTurns, unless the request has got
// another turn since.
func (s *State) forgetRequest(a *Agent, t *agentv1.Turn) {
	if of := RequestOf(a.Namespace, t); s.AcquiredTurns[of].TurnID == t.GetTurnId() {
		delete(s.AcquiredTurns, of)
	}
}

// TurnRequest identifies a request of AcquireTurn. The namespace is that of the
// caller's credential, which differs from the agent's where a runner serves
// every namespace.
type TurnRequest struct{ Namespace, Caller, RequestID string }

// RequestOf returns the request that acquired a turn. Its namespace is that of the
// caller, which is the agent's own unless a shared runner acquired the turn.
func RequestOf(namespace string, t *agentv1.Turn) TurnRequest {
	if t.GetAcquiredFrom() != "" {
		namespace = t.GetAcquiredFrom()
	}
	return TurnRequest{Namespace: namespace, Caller: journal.Actor{
		Principal: t.GetAcquiredBy(),
		KeyID:     t.GetAcquiredByKeyId(),
	}.Caller(), RequestID: t.GetAcquireRequestId()}
}

// finishMessage keeps a message's last record in the lane. If the message is the pending tick,
// none is pending any more.
func (a *Agent) finishMessage(m *agentv1.Message) {
	a.Lane.Finish(m)
	if a.PendingTick == m.GetMessageId() {
		a.PendingTick = ""
	}
}
