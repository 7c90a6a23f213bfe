package projection

import (
	"context"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/prompt"
	"quartet/services/agent/state"
)

// addChildren adds the agent's open delegations with the postures of their children, as far as
// this plane knows them: what a child waits for is known to other planes, and reading those for
// every child would delay the turn.
func (s *Service) addChildren(ctx context.Context, k plane.Key, p *Projection) error {
	open, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) ([]*agentv1.Delegation, error) {
		var open []*agentv1.Delegation
		if a := st.Lookup(k); a != nil {
			for _, d := range a.OpenDelegations() {
				open = append(open, d.Record)
			}
		}
		return open, nil
	})
	if err != nil {
		return err
	}
	for _, d := range open {
		child := plane.Key{Namespace: k.Namespace, ID: d.GetChildAgentId()}
		standing, _, err := journal.View(ctx, s.engine.For(child.Namespace, child.ID),
			func(st *state.State) (string, error) {
				return standingOf(st.Lookup(child), d), nil
			})
		if err != nil {
			return err
		}
		p.children = append(p.children, prompt.Child{Delegation: d, Standing: standing})
	}
	return nil
}

// standingOf returns one word for what a child does or waits for, as far as this plane knows: "starting" if the child
// does not exist yet (a is nil), and "waiting" if it is between two turns and no other word applies.
func standingOf(a *state.Agent, d *agentv1.Delegation) string {
	switch {
	case a == nil:
		return "starting"
	case !a.IsActive():
		return "ending"
	case a.Record.GetControl() == agentv1.Control_CONTROL_STOPPED:
		return "stopped"
	case a.Record.GetControl() == agentv1.Control_CONTROL_PAUSED:
		return "paused"
	case a.OpenTurn != nil:
		return "running_turn"
	case a.Lane.Len() > 0:
		return "queued_input"
	case len(d.GetQuestions()) > 0:
		return "waiting_operator"
	}
	return "waiting"
}
