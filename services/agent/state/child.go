package state

import (
	"cmp"
	"slices"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/tools"
)

// ChildStatus is what supervision needs to know of an agent.
type ChildStatus struct {
	Record        *agentv1.Agent
	Deletion      *agentv1.AgentDeleting // how its deletion began, once it has
	FirstItem     string                 // the first work item that it made; empty if it made none
	Quarantined   string                 // why a message was quarantined; empty if none was
	FactsRevision int64
	// Resting: it has no open turn, no queued message and no pending wake, and its last turn completed.
	// If that turn ended with WaitFor, LastWait is known too.
	Resting bool
	// LastWait is the wait with which its last turn ended, if it ended with WaitFor.
	LastWait string
	LastTurn *agentv1.Turn
	LastText string // the newest text of its rounds in memory; may be empty
	Children []*agentv1.Delegation
}

// ChildStatus returns what decides whether a supervised child has finished, and how.
func (a *Agent) ChildStatus() ChildStatus {
	c := ChildStatus{Record: a.Record, Deletion: a.deletion, FirstItem: a.firstItem, FactsRevision: a.FactsRevision}
	if a.Lane.Quarantined() > 0 {
		for _, m := range a.Lane.Finished() {
			if m.GetState() == agentv1.MessageState_MESSAGE_STATE_QUARANTINED {
				c.Quarantined = cmp.Or(m.GetStateReason(), "a message was quarantined")
			}
		}
	}
	for _, d := range a.Delegations {
		c.Children = append(c.Children, d.Record)
	}
	if last := a.EndedTurns.Last(); last != nil {
		c.LastTurn = last.Record
	}
	for _, t := range slices.Backward(a.EndedTurns.Recent()) { // no others have rounds
		for _, r := range slices.Backward(t.Rounds) {
			c.LastText = cmp.Or(c.LastText, r.GetText())
		}
	}
	c.Resting = a.OpenTurn == nil && a.Lane.Len() == 0 && a.Wake == nil &&
		c.LastTurn.GetState() == agentv1.TurnState_TURN_STATE_COMPLETED
	if c.LastTurn.GetEndReason() == agentv1.TurnEndReason_TURN_END_REASON_WAIT_FOR {
		c.LastWait = a.lastWait()
		c.Resting = c.Resting && c.LastWait != ""
	}
	return c
}

// lastWait returns the id of the wait that the last turn's WaitFor registered, or "" if the last round
// has no such result. There must be an ended turn.
func (a *Agent) lastWait() string {
	t := a.EndedTurns.Last()
	if len(t.Rounds) == 0 {
		return ""
	}
	for _, r := range t.Rounds[len(t.Rounds)-1].GetToolResults() {
		if r.GetToolName() == tools.ToolWaitFor && r.GetStatus() == tools.StatusSuccess {
			return r.GetResult().GetFields()["wait"].GetStructValue().GetFields()["wait_id"].GetStringValue()
		}
	}
	return ""
}
