package projection

import (
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/prompt"
	"quartet/services/agent/tools"
)

// projection is an agent's work as its next turn shows it.
type Projection struct {
	*workv1.GetWorkQueueResponse
	// own are the waits of the agent itself that were triggered.
	ownWaits []*waitingv1.Wait
	// woken is what woke the agent itself, as its context shows it.
	wake *agentv1.AgentWoken
	// subject is the item that a recheck is about.
	subject *workv1.WorkItem
	// trace is what was said and done about the current item, newest first.
	rounds []*agentv1.Round
	// notes are on it, from all that was done for it.
	notes []string
	// tasks are those that run.
	tasks []*taskv1.Task
	// boards is how the agent's boards stand.
	boards prompt.Boards
	// inherited is what a forked child started from.
	inherited string
	// lost are rounds that no runner was answered with.
	lost []prompt.Lost
}

// shown are the trigger counts that the turn's context shows. When the turn
// completes they count as consumed (SPEC section 4).
func (p *Projection) ShownWaits() []*agentv1.ShownWait {
	var shown []*agentv1.ShownWait
	visit := func(it *workv1.WorkItem) {
		for _, w := range it.GetWaits() {
			if w.GetTriggerCount() > w.GetConsumedCount() {
				shown = append(shown, &agentv1.ShownWait{WaitId: w.GetWaitId(), TriggerCount: w.GetTriggerCount()})
			}
		}
	}
	for _, w := range p.ownWaits {
		shown = append(shown, &agentv1.ShownWait{WaitId: w.GetWaitId(), TriggerCount: w.GetTriggerCount()})
	}
	visit(p.GetCurrent())
	for _, it := range p.GetTriggeredBlocked() {
		visit(it)
	}
	for _, it := range p.GetQueuedRunnable() {
		visit(it)
	}
	return shown
}

// context is what the runner gets: within the default budget, or as much as
// what must be shown takes together with what the turn is about.
func (p *Projection) Render(m *agentv1.Message) *agentv1.ContextProjection {
	in := p.input(m)
	c, err := p.renderWithin(in, max(prompt.DefaultBudget, prompt.Needed(in)))
	if err != nil { // the budget was made to fit
		return &agentv1.ContextProjection{WorkRevision: p.GetRevision(), ShownWaits: p.ShownWaits()}
	}
	return c
}

func (p *Projection) input(m *agentv1.Message) prompt.Input {
	return prompt.Input{Message: m, Woken: p.wake, Own: p.ownWaits, Queue: p.GetWorkQueueResponse, Trace: p.rounds, Notes: p.notes, Tasks: p.tasks, Boards: p.boards, Inherited: p.inherited, Lost: p.lost}
}

// render is the projection in sections, as text and as records.
func (p *Projection) renderWithin(in prompt.Input, budget int) (*agentv1.ContextProjection, error) {
	sections, err := prompt.Render(in, budget)
	if err != nil {
		return nil, err
	}
	c := &agentv1.ContextProjection{
		WorkRevision: p.GetRevision(), ShownWaits: p.ShownWaits(), Text: prompt.Text(sections), Sections: sections, BudgetTokens: int32(budget),
	}
	c.Tokens = int32(prompt.Tokens(c.GetText()))
	// Both were made by this process from messages of ours; they always fit.
	if p.GetCurrent() != nil {
		c.Current, _ = tools.ToStruct(p.GetCurrent())
	}
	c.Queue, _ = tools.ToStruct(p.GetWorkQueueResponse)
	delete(c.Queue.GetFields(), "current")
	return c, nil
}
