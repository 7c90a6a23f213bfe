package agent

import (
	"context"
	"fmt"
	"strings"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"

	"google.golang.org/grpc/codes"
)

const (
	// remindAfter is how many rounds of a turn may pass without a change of its
	// item before SubmitRound reminds of it, and remindPause how many lie between
	// two reminders (SPEC W11).
	remindAfter = 10
	remindPause = 10
	// A reminder names at most so many todos, and so much of the objective.
	remindTodos     = 8
	remindObjective = 120
)

// The kinds of reminders, as they begin a notice.
const (
	remindWorkItem = "stale_work_item"
	remindTodoList = "stale_todos"
)

// reminder is what the rounds of a turn call for. It is about the item that
// the turn is bound to, never about whatever the agent has in focus elsewhere
// (upstream #2877).
type reminder struct {
	kind   string
	itemID string
	rounds int // that passed
}

// reminder says what the answer to the newest round should remind of: a
// function of the turn's rounds alone, so that a repetition finds the same.
// Todos are stale when the item was written to, yet its checklist was not.
func (t *turnState) reminder() *reminder {
	last, itemID := len(t.rounds)-1, t.rec.GetWorkItemId()
	if itemID == "" {
		return nil
	}
	for i := max(0, last-remindPause+1); i <= last; i++ {
		for _, n := range t.settled[int32(i)].GetNotices() {
			if strings.HasPrefix(n, remindWorkItem) || strings.HasPrefix(n, remindTodoList) {
				return nil
			}
		}
	}
	quiet, listless := t.since(itemID, writesItem), t.since(itemID, writesTodos)
	switch {
	case quiet >= remindAfter:
		return &reminder{remindWorkItem, itemID, quiet}
	case listless >= remindAfter:
		return &reminder{remindTodoList, itemID, listless}
	}
	return nil
}

// since counts the latest rounds of a turn without a call on the item that
// counts. The turn's binding to it is such a call: what was before was about
// another item.
func (t *turnState) since(itemID string, counts func(c *agentv1.ToolCall) bool) int {
	n := 0
	for i := len(t.rounds) - 1; i >= 0; i-- {
		round := t.rounds[i]
		for j, r := range round.GetToolResults() {
			if r.GetStatus() == statusSuccess && j < len(round.GetToolCalls()) && counts(round.GetToolCalls()[j]) && concerns(r, itemID) {
				return n
			}
		}
		n++
	}
	return n
}

func writesItem(c *agentv1.ToolCall) bool {
	switch c.GetName() {
	case "PickWorkItem", "UpdateWorkItem", toolCompleteWorkItem, "CreateWait":
		return true
	}
	return false
}

func writesTodos(c *agentv1.ToolCall) bool {
	_, given := c.GetArguments().GetFields()["todo_list"]
	return c.GetName() == "PickWorkItem" || c.GetName() == "UpdateWorkItem" && given
}

// concerns says whether a result is about an item.
func concerns(r *agentv1.ToolResult, itemID string) bool {
	f := r.GetResult().GetFields()
	return f["work_item"].GetStructValue().GetFields()["work_item_id"].GetStringValue() == itemID ||
		f["wait"].GetStructValue().GetFields()["work_item_id"].GetStringValue() == itemID
}

// remind makes the notice, "" if there is nothing to say: the item may have
// ended meanwhile, or have no todos left. A plane that cannot be reached
// costs the details, not the round.
func (s *Service) remind(ctx context.Context, k key, runID string, due *reminder) string {
	if due == nil {
		return ""
	}
	r, err := s.deps.Work.GetWorkItem(s.asRun(ctx, k, runID), &workv1.GetWorkItemRequest{AgentId: k.ID, WorkItemId: due.itemID})
	if err != nil {
		if due.kind == remindWorkItem && fault.From(err).Code() == codes.Unavailable {
			return due.text(nil)
		}
		return ""
	}
	it := r.GetWorkItem()
	if it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED || due.kind == remindTodoList && len(unfinished(it)) == 0 {
		return ""
	}
	return due.text(it)
}

func unfinished(it *workv1.WorkItem) []*workv1.TodoItem {
	var out []*workv1.TodoItem
	for _, t := range it.GetTodoList() {
		if t.GetState() != workv1.TodoState_TODO_STATE_COMPLETED {
			out = append(out, t)
		}
	}
	return out
}

func (d *reminder) text(it *workv1.WorkItem) string {
	var b strings.Builder
	name := "work item " + d.itemID
	if it.GetObjective() != "" {
		name += fmt.Sprintf(" (%s)", cutLine(it.GetObjective(), remindObjective))
	}
	todos := unfinished(it)
	switch d.kind {
	case remindTodoList:
		fmt.Fprintf(&b, "%s: the todo_list of %s has not been written for %d rounds. Send the whole current list with UpdateWorkItem.", d.kind, name, d.rounds)
	default:
		fmt.Fprintf(&b, "%s: %d rounds have passed without a change of %s. ", d.kind, d.rounds, name)
		b.WriteString("If it advanced, send its whole current todo_list with UpdateWorkItem; if it cannot go on, set blocked_by or plan_status needs_input, or call WaitFor; " +
			"if its objective is reached, write the report and call CompleteWorkItem in the same round; if this is other work, pick or create that item.")
		if it != nil && len(it.GetTodoList()) > 0 && len(todos) == 0 {
			b.WriteString(" All its todos are completed.")
		}
	}
	for i, t := range todos {
		if i == remindTodos {
			fmt.Fprintf(&b, "\n- and %d more", len(todos)-i)
			break
		}
		fmt.Fprintf(&b, "\n- [%s] %s", lower(t.GetState().String(), "TODO_STATE_"), cutLine(t.GetText(), remindObjective))
	}
	return b.String()
}

// cutLine folds text into one line of at most n characters.
func cutLine(s string, n int) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-1]) + "…"
}
