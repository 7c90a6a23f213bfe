package agent

import (
	"context"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/prompt"
)

const (
	shownRounds = 8 // of the current item, newest first
	shownTasks  = 5
)

// GetContext renders what a model is shown of an agent's work, within a budget
// (SPEC C1): the same records as GetWorkQueue and the scheduler have at that
// revision. It changes nothing, so what it shows does not count as seen.
func (s *Service) GetContext(ctx context.Context, req *agentv1.GetContextRequest) (*agentv1.GetContextResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	budget := int(req.GetBudgetTokens())
	if budget == 0 {
		budget = prompt.DefaultBudget
	}
	if budget < prompt.MinBudget || budget > prompt.MaxBudget {
		return nil, fault.LimitExceeded.Newf("budget_tokens is %d; it must be %d to %d, or 0 for %d", budget, prompt.MinBudget, prompt.MaxBudget, prompt.DefaultBudget).
			WithField("budget_tokens", "must be 512 to 200000")
	}
	k := key{actor.Namespace, req.GetAgentId()}
	m, _, err := plane.View(ctx, s.engine, k.id, func(st *State) (*agentv1.Message, error) {
		a, err := st.agent(k.namespace, k.id)
		if err != nil || a.turn == nil {
			return nil, err
		}
		return a.messages[a.turn.rec.GetMessageId()], nil
	})
	if err != nil {
		return nil, err
	}
	ctx = rpc.WithActor(ctx, rpc.Actor{Namespace: k.namespace, Principal: runPrincipal(k), Role: rpc.RoleAgent, AgentID: k.id})
	q, err := s.deps.Work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: k.id})
	if err != nil {
		return nil, err
	}
	p := &projection{GetWorkQueueResponse: q}
	if err := s.recall(ctx, k, p); err != nil {
		return nil, err
	}
	c, err := p.render(p.input(m), budget)
	if err != nil {
		return nil, err
	}
	return &agentv1.GetContextResponse{Context: c}, nil
}

// recall adds what the agent did for its current item, what it inherited, and
// what still runs.
func (s *Service) recall(ctx context.Context, k key, p *projection) error {
	if err := s.inheritance(ctx, k, p); err != nil {
		return err
	}
	var err error
	if p.lost, err = s.unrecorded(ctx, k); err != nil {
		return err
	}
	if itemID := p.GetCurrent().GetWorkItemId(); itemID != "" {
		if p.trace, p.notes, err = s.remembered(ctx, k, itemID); err != nil {
			return err
		}
	}
	if s.deps.Tasks == nil {
		return nil
	}
	r, err := s.deps.Tasks.ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: k.id, PageSize: shownTasks})
	if err != nil {
		return err
	}
	p.tasks = r.GetTasks()
	return nil
}
