package projection

import (
	"context"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/prompt"
	"quartet/services/agent/state"
)

const (
	shownRounds = state.ShownRounds // of the current item, newest first
	shownTasks  = 5
)

// GetContext renders what a model is shown of an agent's work, within a budget (SPEC C1),
// from the same records that GetWorkQueue and the scheduler read. It changes nothing:
// what it shows does not count as seen.
func (s *Service) GetContext(ctx context.Context, req *agentv1.GetContextRequest) (*agentv1.GetContextResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	budget := int(req.GetBudgetTokens())
	if budget == 0 {
		budget = prompt.DefaultBudget
	}
	if budget < prompt.MinBudget || budget > prompt.MaxBudget {
		return nil, fault.LimitExceeded.Newf("budget_tokens is %d; it must be %d to %d, or 0 for %d", budget,
			prompt.MinBudget, prompt.MaxBudget, prompt.DefaultBudget).
			WithField("budget_tokens", "must be 512 to 200000")
	}
	k := plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()}
	c, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (*state.Candidate, error) {
		a, err := st.Find(k.Namespace, k.ID)
		if err != nil || a.OpenTurn == nil {
			return nil, err
		}
		return a.OpenTurn.Candidate(k, a), nil
	})
	if err != nil {
		return nil, err
	}
	p := &Projection{agentID: k.ID}
	if c != nil {
		p, err = s.Read(ctx, c)
	} else {
		err = s.readOutside(ctx, k, p)
	}
	if err != nil {
		return nil, err
	}
	m := c.Shown()
	in := p.input(m)
	if req.GetBudgetTokens() == 0 { // a turn's budget grows to what must be shown
		budget = max(budget, prompt.Needed(in))
	}
	text, err := p.renderWithin(in, budget)
	if err != nil {
		return nil, err
	}
	return &agentv1.GetContextResponse{Context: text}, nil
}

// readOutside reads an agent's work for a context outside of a turn. It fills p like a turn that is bound
// to the item in focus.
func (s *Service) readOutside(ctx context.Context, k plane.Key, p *Projection) (err error) {
	ctx = rpc.WithActor(ctx, access.AgentActor(k))
	if p.GetWorkQueueResponse, err = s.deps.Work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: k.ID}); err !=
		nil {
		return err
	}
	p.bind(nil, nil, true)
	return s.addHistory(ctx, k, p, nil)
}

// boardTimeout bounds how long a turn waits for the summary of its boards.
const boardTimeout = 2 * time.Second

// boardSummary reads the state of an orchestrator's boards, within the budget that the
// board plane sets (S2-464, S2-465). An agent without the boards family has none. A board
// plane that is down delays no turn: the context says what is missing (SPEC D5).
func (s *Service) boardSummary(ctx context.Context, k plane.Key) (prompt.Boards, error) {
	if s.deps.Boards == nil {
		return prompt.Boards{}, nil
	}
	has, err := s.calls.Profile(ctx, k)
	if err != nil || !has.Has(agentv1.ToolFamily_TOOL_FAMILY_BOARDS) {
		return prompt.Boards{}, err
	}
	term, cancel := context.WithTimeout(ctx, boardTimeout)
	defer cancel()
	r, err := s.deps.Boards.GetSummary(term, &boardv1.GetSummaryRequest{SessionId: k.ID})
	switch {
	case err == nil:
		return prompt.Boards{Text: r.GetText(), Truncated: r.GetTruncated()}, nil
	case ctx.Err() != nil:
		return prompt.Boards{}, fault.From(ctx.Err())
	}
	s.deps.Logger.Warn("the boards of a context could not be read", zap.String("namespace", k.Namespace),
		zap.String("agent_id", k.ID), zap.Error(err))
	return prompt.Boards{Unknown: true}, nil
}

// addHistory adds to p, which is bound to its item, what was said, what was tried, what the agent
// did for the item, what it inherited, its children, its boards and its running tasks. It returns
// the first error; boards that cannot be read are shown as unknown instead. The reads run one after
// the other: in parallel they take longer, since a second processor has to wake up.
func (s *Service) addHistory(ctx context.Context, k plane.Key, p *Projection, m *agentv1.Message) error {
	if err := s.addInherited(ctx, k, p); err != nil {
		return err
	}
	var err error
	if p.attempts, err = s.attempts(ctx, k); err != nil {
		return err
	}
	if err := s.addConversation(ctx, k, p, m.GetMessageId()); err != nil {
		return err
	}
	if itemID := p.item.GetWorkItemId(); itemID != "" {
		if p.rounds, p.notes, p.doneSince, err = s.itemHistory(ctx, k, itemID); err != nil {
			return err
		}
	}
	if err := s.addChildren(ctx, k, p); err != nil {
		return err
	}
	if p.boards, err = s.boardSummary(ctx, k); err != nil || s.deps.Tasks == nil {
		return err
	}
	r, err := s.deps.Tasks.ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: k.ID, PageSize: shownTasks})
	if err != nil {
		return err
	}
	p.tasks = r.GetTasks()
	return nil
}
