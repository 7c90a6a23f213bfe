package projection

import (
	"slices"

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
	agentID string
	// item is the work item that the turn is bound to, nil if it is bound to none, and binding
	// the rule that bound it.
	item    *workv1.WorkItem
	binding agentv1.Binding
	// reached are the waits that the message resolved or was delivered to, and those of the
	// agent itself that woke it.
	reached []*waitingv1.Wait
	// fired is how often the timer of the message has fired since the message was queued,
	// including the firing that queued it; 0 if the message is about no timer.
	fired int64
	// ownWaits are the triggered waits of the agent itself.
	ownWaits []*waitingv1.Wait
	// standing are the waits of the agent itself that are not over.
	standing []*waitingv1.Wait
	// stalled are the items about which turns made no progress.
	stalled []*agentv1.StalledItem
	// wake is what woke the agent itself, if anything did.
	wake *agentv1.AgentWoken
	// rounds are the newest rounds for the item, newest first.
	rounds []*agentv1.Round
	// notes are the notes on all rounds for the item.
	notes []string
	// conversation is what was said, oldest first, and earlier the bytes of it that are left
	// out before that; summary, nil if there is none, stands for what was said before these.
	conversation []prompt.Said
	summary      *prompt.Summary
	earlier      int
	// since is the time of the oldest utterance that can still be read back, and doneSince that of the oldest
	// round for the item, as a context shows them. Each is empty if nothing older was removed.
	since, doneSince string
	// tasks are the running tasks.
	tasks []*taskv1.Task
	// children are the open delegations of the agent.
	children []prompt.Child
	// boards is the state of the agent's boards.
	boards prompt.Boards
	// inherited is the view with which a forked child started.
	inherited string
	// attempts are the rounds of the turns that ended since the last one that completed.
	attempts []prompt.Attempt
}

// Item returns the work item that the turn is bound to, nil if it is bound to none, and the
// rule that bound it.
func (p *Projection) Item() (*workv1.WorkItem, agentv1.Binding) { return p.item, p.binding }

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
	if p.item.GetWorkItemId() != p.GetCurrent().GetWorkItemId() {
		visit(p.item)
	}
	visit(p.GetCurrent())
	for _, it := range slices.Concat(p.GetTriggeredBlocked(), p.GetQueuedRunnable()) {
		if it.GetWorkItemId() != p.item.GetWorkItemId() {
			visit(it)
		}
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
	return prompt.Input{
		AgentID: p.agentID, Message: m, Item: p.item, Binding: p.binding, Waits: p.reached, Fired: p.fired,
		Woken: p.wake, Own: p.ownWaits, Standing: p.standing, Queue: p.GetWorkQueueResponse,
		Trace: p.rounds, Notes: p.notes, Tasks: p.tasks, Children: p.children, Boards: p.boards, Inherited: p.inherited,
		Attempts:     p.attempts,
		Conversation: p.conversation, Summary: p.summary, Earlier: p.earlier, Since: p.since, DoneSince: p.doneSince,
	}
}

// renderWithin renders the projection as sections, as text and as records.
func (p *Projection) renderWithin(in prompt.Input, budget int) (*agentv1.ContextProjection, error) {
	sections, err := prompt.Render(in, budget)
	if err != nil {
		return nil, err
	}
	c := &agentv1.ContextProjection{
		WorkRevision: p.GetRevision(), ShownWaits: p.ShownWaits(), Text: prompt.Text(sections), Sections: sections,
		BudgetTokens: int32(budget),
	}
	c.Tokens = int32(prompt.Tokens(c.GetText()))
	// Both are messages of this repository and always fit.
	if p.item != nil {
		c.Current, _ = tools.ToStruct(p.item)
	}
	c.Queue, _ = tools.ToStruct(p.GetWorkQueueResponse)
	delete(c.Queue.GetFields(), "named")
	if p.GetCurrent().GetWorkItemId() == p.item.GetWorkItemId() {
		delete(c.Queue.GetFields(), "current")
	}
	return c, nil
}
