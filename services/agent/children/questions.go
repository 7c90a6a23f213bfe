package children

import (
	"context"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// noteQuestions lets the parent know what its child asks: the waits of the child for an
// operator, which only the parent can answer (SPEC A14). What the parent's delegation records
// is compared with the waits as they are, so that a question whose event was missed is asked,
// and one that is over is withdrawn.
func (s *Service) noteQuestions(ctx context.Context, k, parent plane.Key, d *agentv1.Delegation) error {
	r, err := access.AllWaits(ctx, s.deps.Waiting, &waitingv1.ListWaitsRequest{AgentId: k.ID})
	if err != nil {
		return err
	}
	asked := state.Questions(r.GetWaits())
	if len(asked) == 0 && len(d.GetQuestions()) == 0 {
		return nil
	}
	return s.commit(ctx, parent, "NoteQuestions", func(a *state.Agent, env journal.Env) []*journal.Event {
		return a.NoteQuestions(env, d.GetDelegationId(), asked)
	})
}
