package sim

import (
	"fmt"
	"maps"
	"slices"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// consequences are what events of one plane must bring about in another one, exactly once (SPEC R8): no event may be
// passed over, and none may have its effect twice. It is part of the books.
type consequences struct {
	due  map[string]int // what must come, by what it is
	came map[string]int

	firings map[string]*firings       // by timer
	tasks   map[string]*results       // ends of tasks
	reports map[string]bool           // turns whose text became the report of an item, and these items
	rounds  map[string][]completion   // by turn: its rounds that complete items
	doneIn  map[string]string         // the turns in which items were completed
	shown   map[string]int64          // how many triggers of a wait completed turns have shown
	asking  map[string]*operatorWait  // active waits of items for an operator, by wait
	queued  map[string]map[string]int // messages in each agent's lane: their count of times queued
}

// firings are those of one timer. A message about one that is still queued stands for the next ones (SPEC P7).
type firings struct {
	alone  map[int64]bool // those that no message stands for yet
	queued int            // messages about the timer that are in the lane
}

// operatorWait is a wait of an item for an operator, and the first instruction about the item that was queued since.
type operatorWait struct {
	agent, item string
	answeredBy  string
}

// completion is the items that a round completes. Its text is the report of the only one.
type completion struct {
	items []string
	text  string
}

func newConsequences() *consequences {
	return &consequences{
		due: map[string]int{}, came: map[string]int{}, firings: map[string]*firings{}, tasks: map[string]*results{},
		reports: map[string]bool{}, rounds: map[string][]completion{}, doneIn: map[string]string{},
		shown: map[string]int64{}, asking: map[string]*operatorWait{}, queued: map[string]map[string]int{},
	}
}

// must notes that something has to come, and come that it came.
func (c *consequences) must(format string, args ...any) { c.due[fmt.Sprintf(format, args...)]++ }

func (c *consequences) come(format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	if c.came[what]++; c.came[what] > c.due[what] {
		return fmt.Errorf("%s: there are %d, and %d are right", what, c.came[what], c.due[what])
	}
	return nil
}

// firingsOf returns the firings of a timer.
func (c *consequences) firingsOf(timerID string) *firings {
	if c.firings[timerID] == nil {
		c.firings[timerID] = &firings{alone: map[int64]bool{}}
	}
	return c.firings[timerID]
}

// read follows one event.
func (c *consequences) read(plane, agentID, itemID string, payload any) error {
	switch p := payload.(type) {
	case *agentv1.RoundSubmitted:
		c.completes(p.GetRound())
	case *agentv1.TurnAborted:
		delete(c.rounds, p.GetTurn().GetTurnId()) // what it did not do is not done
	case *workv1.WorkItemCompleted:
		c.doneIn[itemID] = p.GetWorkItem().GetCompletedInTurnId()
		c.must("waiting notes that item %s is completed", itemID)
	case *workv1.ReportPromoted:
		c.reports[p.GetTurnId()], c.reports[itemID] = true, true
		c.must("result brief %s about item %s: %s", p.GetBriefId(), itemID, p.GetText())
	case *agentv1.BriefWritten:
		return c.brief(p.GetBrief())
	case *waitingv1.WorkItemNoted:
		return c.come("waiting notes that item %s is completed", p.GetWorkItemId())
	case *waitingv1.TriggerDelivered:
		if p.GetContentful() {
			c.must("a message about delivery %s", p.GetDeliveryId())
		}
	case *waitingv1.WaitTriggered:
		if p.GetWakeAgent() {
			c.must("%s is woken by trigger %s", agentID, p.GetTriggerId())
		}
	case *waitingv1.WaitRechecked:
		c.must("%s is woken by recheck %s", agentID, p.GetWait().GetWaitId())
	case *waitingv1.WaitRegistered:
		if w := p.GetWait(); w.GetKind() == waitingv1.WaitKind_WAIT_KIND_OPERATOR &&
			w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT && w.GetWorkItemId() != "" {
			c.asking[w.GetWaitId()] = &operatorWait{agent: agentID, item: w.GetWorkItemId()}
		}
	case *waitingv1.WaitCancelled:
		delete(c.asking, p.GetWait().GetWaitId())
	case *waitingv1.WaitResolved:
		delete(c.asking, p.GetWait().GetWaitId())
		if p.GetWait().GetWorkItemId() == "" && p.GetCause() == waitingv1.WaitCause_WAIT_CAUSE_TIMER {
			c.must("%s is woken by wait %s", agentID, p.GetWait().GetWaitId())
		}
	case *waitingv1.TimerFired:
		if f := c.firingsOf(p.GetTimer().GetTimerId()); f.queued == 0 {
			f.alone[p.GetTimer().GetFireCount()] = true
		}
	case *taskv1.TaskCompleted, *taskv1.TaskFailed, *taskv1.TaskCancelled, *taskv1.TaskInterrupted:
		return c.task(payload)
	case *waitingv1.TaskNoted:
		if p.GetTerminal() {
			return c.noted(p.GetTaskId())
		}
	case *agentv1.TaskAnswered:
		return c.answered(p.GetTaskId())
	case *agentv1.AgentWoken:
		return c.come("%s is woken by %s %s", agentID, p.GetSource(), p.GetSourceId())
	case *agentv1.TurnCompleted:
		for _, w := range p.GetTurn().GetShownWaits() {
			c.shown[w.GetWaitId()] = max(c.shown[w.GetWaitId()], w.GetTriggerCount())
		}
	}
	if p, ok := payload.(interface{ GetMessage() *agentv1.Message }); ok && plane == "agent" {
		return c.message(payload, p.GetMessage())
	}
	return nil
}

// completes notes the items that a round completes.
func (c *consequences) completes(r *agentv1.Round) {
	done := completion{text: r.GetText()}
	for _, call := range r.GetToolCalls() {
		if call.GetName() == "CompleteWorkItem" {
			done.items = append(done.items, call.GetArguments().GetFields()["work_item_id"].GetStringValue())
		}
	}
	if len(done.items) > 0 {
		c.rounds[r.GetTurnId()] = append(c.rounds[r.GetTurnId()], done)
	}
}

// reported checks that an item which the only such round of a turn completed, and nothing else, has its report, also if
// the round was cut short (SPEC C3, W7).
func (c *consequences) reported() error {
	for _, item := range slices.Sorted(maps.Keys(c.doneIn)) {
		rounds := c.rounds[c.doneIn[item]]
		if len(rounds) == 1 && slices.Equal(rounds[0].items, []string{item}) && rounds[0].text != "" &&
			!c.reports[item] {
			return fmt.Errorf("item %s was completed in turn %s and has no report", item, c.doneIn[item])
		}
	}
	return nil
}

// brief follows the briefs that report a result: there is one of each report, and the turn whose text is the report
// says it no second time (SPEC C3, W7).
func (c *consequences) brief(b *agentv1.Brief) error {
	switch {
	case b.GetKind() != agentv1.BriefKind_BRIEF_KIND_RESULT:
		return nil
	case b.GetWorkItemId() != "":
		return c.come("result brief %s about item %s: %s", b.GetBriefId(), b.GetWorkItemId(), b.GetText())
	case c.reports[b.GetTurnId()]:
		return fmt.Errorf("brief %s repeats the report of turn %s", b.GetBriefId(), b.GetTurnId())
	}
	return nil
}

// message follows the messages of lanes.
func (c *consequences) message(payload any, m *agentv1.Message) error {
	lane := c.queued[m.GetAgentId()]
	if lane == nil {
		lane = map[string]int{}
		c.queued[m.GetAgentId()] = lane
	}
	switch payload.(type) {
	case *agentv1.MessageQueued:
		if m.GetTick() != nil && len(lane) > 0 {
			return fmt.Errorf("tick %s of %s was queued behind %d messages: a tick is for an agent with nothing to "+
				"do (SPEC D2)", m.GetMessageId(), m.GetAgentId(), len(lane))
		}
		lane[m.GetMessageId()]++
		return c.arrived(m)
	case *agentv1.MessageRequeued:
		lane[m.GetMessageId()]++
		if m.GetTimerId() != "" {
			f := c.firingsOf(m.GetTimerId())
			f.queued++
			clear(f.alone) // as a new one, for those that were not consumed yet
		}
	default:
		if lane[m.GetMessageId()] == 0 {
			return nil
		}
		delete(lane, m.GetMessageId())
		if m.GetTimerId() != "" {
			c.firingsOf(m.GetTimerId()).queued--
		}
	}
	return nil
}

// arrived follows a new message.
func (c *consequences) arrived(m *agentv1.Message) error {
	switch {
	case m.GetTimerId() != "":
		f, n := c.firingsOf(m.GetTimerId()), int64(0)
		f.queued++
		if _, err := fmt.Sscanf(m.GetCausationId(), m.GetTimerId()+"/%d", &n); err != nil {
			return fmt.Errorf("message %s is about timer %s because of %q", m.GetMessageId(), m.GetTimerId(),
				m.GetCausationId())
		}
		for earlier := range f.alone {
			if earlier < n {
				return fmt.Errorf("firing %d of timer %s brought a message, and firing %d did not", n, m.GetTimerId(),
					earlier)
			}
		}
		clear(f.alone) // this message may stand for those that were not consumed when it was queued
	case m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT:
		return c.told(m.GetTaskId())
	case m.GetTriggerId() != "":
		return c.come("a message about delivery %s", m.GetCausationId())
	case m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT && m.GetWorkItemId() != "":
		for _, w := range c.asking {
			if w.agent == m.GetAgentId() && w.item == m.GetWorkItemId() && w.answeredBy == "" {
				w.answeredBy = m.GetMessageId()
			}
		}
	}
	return nil
}

// atRest returns what has not come about.
func (c *consequences) atRest() error {
	for _, what := range slices.Sorted(maps.Keys(c.due)) {
		if c.came[what] < c.due[what] {
			return fmt.Errorf("%s: it must have come %d times, and came %d times", what, c.due[what], c.came[what])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.tasks)) {
		if r := c.tasks[id]; r.ended != 1 || r.noted != 1 || r.messages == 0 && !r.answered {
			return fmt.Errorf("task %s ended %d times, and the waiting plane noted it %d times; the agent has %d "+
				"messages about it, and the call was answered: %t", id, r.ended, r.noted, r.messages, r.answered)
		}
	}
	for _, timer := range slices.Sorted(maps.Keys(c.firings)) {
		if n := slices.Sorted(maps.Keys(c.firings[timer].alone)); len(n) > 0 {
			return fmt.Errorf("firing %d of timer %s brought no message, and none was queued", n[0], timer)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.asking)) {
		if w := c.asking[id]; w.answeredBy != "" {
			return fmt.Errorf("wait %s of item %s for an operator goes on, and message %s answered it", id, w.item,
				w.answeredBy)
		}
	}
	return c.reported()
}

// consumed checks an active wait of a quiet system: what completed turns have shown of it is consumed (SPEC P2).
func (c *consequences) consumed(w *waitingv1.Wait) error {
	if n := min(c.shown[w.GetWaitId()], w.GetTriggerCount()); w.GetConsumedCount() < n {
		return fmt.Errorf("turns have shown %d triggers of wait %s, and it has consumed %d", n, w.GetWaitId(),
			w.GetConsumedCount())
	}
	return nil
}
