package state

import (
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// SenderAuthority returns the least authority among the messages that a turn of the agent
// took: its own and those that were given to it since (SPEC A14.4). What the turn says to
// others has no more. It is that of evidence if the turn, or one of the messages, is no longer
// in memory.
func (a *Agent) SenderAuthority(runID string) agentv1.Authority {
	t := a.turnOf(runID)
	if t == nil {
		return agentv1.Authority_AUTHORITY_EXTERNAL_EVIDENCE
	}
	least := a.authorityOf(t.Record.GetMessageId())
	for _, id := range t.Record.GetInterjectedMessageIds() {
		least = max(least, a.authorityOf(id)) // a larger number is less authority
	}
	return least
}

func (a *Agent) authorityOf(messageID string) agentv1.Authority {
	if m := a.Lane.Get(messageID); m != nil {
		return m.GetAuthority()
	}
	return agentv1.Authority_AUTHORITY_EXTERNAL_EVIDENCE
}

// turnOf returns the turn of a run, nil if it is not in memory.
func (a *Agent) turnOf(runID string) *Turn {
	if a == nil {
		return nil
	}
	if a.OpenTurn != nil && a.OpenTurn.Record.GetRunId() == runID {
		return a.OpenTurn
	}
	for t := range a.EndedTurns.Backward() {
		if t.Record.GetRunId() == runID {
			return t
		}
	}
	return nil
}
