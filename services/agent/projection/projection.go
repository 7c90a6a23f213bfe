package projection

import (
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/prompt"
	"quartet/services/agent/tools"
)

// Projection is an agent's work as the context of a turn shows it.
type Projection struct {
	*workv1.GetWorkQueueResponse
	// ownWaits are the triggered waits of the agent itself.
	ownWaits []*waitingv1.Wait
	// wake is what woke the agent itself, if anything did.
	wake *agentv1.AgentWoken
	// subject is the item that a recheck is about.
	subject *workv1.WorkItem
	// rounds are the newest rounds for the current item, newest first.
	rounds []*agentv1.Round
	// notes are the notes on all rounds for the current item.
	notes []string
	// tasks are the running tasks.
	tasks []*taskv1.Task
	// boards is the state of the agent's boards.
	boards prompt.Boards
	// inherited is the view with which a forked child started.
	inherited string
	// lost are the rounds that no runner received a response for.
	lost []prompt.Lost
}

// ShownWaits returns the trigger counts that the context shows. They count as consumed
// when the turn completes (SPEC P2).
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

// Render renders the context of a turn, within the default budget, or a larger one if the
// parts that must be shown, the message and the inherited view need it (prompt.Needed). m may
// be nil.
func (p *Projection) Render(m *agentv1.Message) *agentv1.ContextProjection {
	in := p.input(m)
	c, err := p.renderWithin(in, max(prompt.DefaultBudget, prompt.Needed(in)))
	if err != nil { // cannot happen: the budget fits
		return &agentv1.ContextProjection{WorkRevision: p.GetRevision(), ShownWaits: p.ShownWaits()}
	}
	return c
}

func (p *Projection) input(m *agentv1.Message) prompt.Input {
	return prompt.Input{Message: m, Woken: p.wake, Own: p.ownWaits, Queue: p.GetWorkQueueResponse, Trace: p.rounds, Notes: p.notes, Tasks: p.tasks, Boards: p.boards, Inherited: p.inherited, Lost: p.lost}
}

// renderWithin renders the projection as sections, as text and as records.
func (p *Projection) renderWithin(in prompt.Input, budget int) (*agentv1.ContextProjection, error) {
	sections, err := prompt.Render(in, budget)
	if err != nil {
		return nil, err
	}
	c := &agentv1.ContextProjection{
		WorkRevision: p.GetRevision(), ShownWaits: p.ShownWaits(), Text: prompt.Text(sections), Sections: sections, BudgetTokens: int32(budget),
	}
	c.Tokens = int32(prompt.Tokens(c.GetText()))
	// Both are messages of this repository and always fit.
	if p.GetCurrent() != nil {
		c.Current, _ = tools.ToStruct(p.GetCurrent())
	}
	c.Queue, _ = tools.ToStruct(p.GetWorkQueueResponse)
	delete(c.Queue.GetFields(), "current")
	return c, nil
}
