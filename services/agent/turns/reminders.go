package turns

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/pkg/utf8cut"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
	"quartet/services/agent/tools"
)

// reminderAfter is after how many rounds without a change of its item a turn is reminded
// of it, and reminderInterval how many rounds lie between two reminders (SPEC W11).
const reminderAfter = 10

const reminderInterval = 10

// reminderTodos is how many todos a reminder names.
const reminderTodos = 8

// The kinds of reminders, with which their notices begin.
const (
	RemindWorkItem = "stale_work_item"
	RemindTodoList = "stale_todos"
)

// reminder is a reminder that is due. It is about the item that the turn is bound to,
// whatever item is current.
type reminder struct {
	kind   string
	itemID string
	rounds int // rounds without a change
}

// dueReminder returns the reminder that is due after the newest round of a turn, or nil. It is about the
// todo list if the last reminderAfter rounds changed the item but not its todo list, and about the item if
// they did not change it at all. The result depends only on the turn's recorded rounds and notices, so a
// repetition of a SubmitRound that was interrupted before the round was settled finds the same.
func dueReminder(t *state.Turn) *reminder {
	last, itemID := len(t.Rounds)-1, t.Record.GetWorkItemId()
	if itemID == "" {
		return nil
	}

	// The last rounds must have no reminder.
	for i := max(0, last-reminderInterval+1); i <= last; i++ {
		for _, n := range t.Settled[int32(i)].GetNotices() {
			if strings.HasPrefix(n, RemindWorkItem) || strings.HasPrefix(n, RemindTodoList) {
				return nil
			}
		}
	}

	withoutItem, withoutTodos := roundsWithout(t, itemID, writesItem), roundsWithout(t, itemID, writesTodos)
	switch {
	case withoutItem >= reminderAfter:
		return &reminder{RemindWorkItem, itemID, withoutItem}
	case withoutTodos >= reminderAfter:
		return &reminder{RemindTodoList, itemID, withoutTodos}
	}
	return nil
}

// roundsWithout returns how many rounds of a turn follow the last round that has a successful call about the item for
// which counts returns true. If no round has such a call, it returns the number of all rounds.
func roundsWithout(t *state.Turn, itemID string, counts func(c *agentv1.ToolCall) bool) int {
	n := 0
	for i := len(t.Rounds) - 1; i >= 0; i-- {
		round := t.Rounds[i]
		for j, r := range round.GetToolResults() {
			if r.GetStatus() == tools.StatusSuccess && j < len(round.GetToolCalls()) &&
				counts(round.GetToolCalls()[j]) && concerns(r, itemID) {
				return n
			}
		}
		n++
	}
	return n
}

// writesItem reports whether a call counts as a change of its work item if it succeeds. A pick does, since the agent
// has turned to the item.
func writesItem(c *agentv1.ToolCall) bool {
	switch c.GetName() {
	case "PickWorkItem", "UpdateWorkItem", tools.ToolCompleteWorkItem, "CreateWait":
		return true
	}
	return false
}

// writesTodos reports whether a call counts as a change of the todo list of its work item if it succeeds. A pick does,
// since the agent has turned to the item.
func writesTodos(c *agentv1.ToolCall) bool {
	_, given := c.GetArguments().GetFields()["todo_list"]
	return c.GetName() == "PickWorkItem" || c.GetName() == "UpdateWorkItem" && given
}

// concerns reports whether a result is about an item.
func concerns(r *agentv1.ToolResult, itemID string) bool {
	f := r.GetResult().GetFields()
	return f["work_item"].GetStructValue().GetFields()["work_item_id"].GetStringValue() == itemID ||
		f["wait"].GetStructValue().GetFields()["work_item_id"].GetStringValue() == itemID
}

// remind returns the notice of a reminder, or "" if due is nil, the item was completed meanwhile, or
// a stale todo list has no open todos. If the work plane is down, RemindWorkItem has no details, and
// RemindTodoList is left out.
func (s *Service) remind(ctx context.Context, k plane.Key, runID string, due *reminder) string {
	if due == nil {
		return ""
	}
	r, err := s.deps.Work.GetWorkItem(access.AsRun(ctx, k, runID), &workv1.GetWorkItemRequest{
		AgentId: k.ID, WorkItemId: due.itemID,
	})
	if err != nil {
		if due.kind == RemindWorkItem && fault.From(err).Code() == codes.Unavailable {
			return due.Text(nil)
		}
		return ""
	}
	it := r.GetWorkItem()
	listDone := due.kind == RemindTodoList && len(unfinished(it)) == 0
	if listDone || it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED {
		return ""
	}
	return due.Text(it)
}

// unfinished returns the todos of an item that are not completed.
func unfinished(it *workv1.WorkItem) []*workv1.TodoItem {
	var out []*workv1.TodoItem
	for _, t := range it.GetTodoList() {
		if t.GetState() != workv1.TodoState_TODO_STATE_COMPLETED {
			out = append(out, t)
		}
	}
	return out
}

// Text returns the notice. it is the item, or nil if it could not be read.
func (d *reminder) Text(it *workv1.WorkItem) string {
	name := "work item " + d.itemID
	if it.GetObjective() != "" {
		name += fmt.Sprintf(" (%s)", utf8cut.Line(it.GetObjective(), tools.SummaryChars))
	}
	todos := unfinished(it)

	// Say what is stale.
	var b strings.Builder
	switch d.kind {
	case RemindTodoList:
		fmt.Fprintf(&b, "%s: the todo_list of %s has not been written for %d rounds. Send the whole current list "+
			"with UpdateWorkItem.", d.kind, name, d.rounds)
	default:
		fmt.Fprintf(&b, "%s: %d rounds have passed without a change of %s. ", d.kind, d.rounds, name)
		b.WriteString("If it advanced, send its whole current todo_list with UpdateWorkItem; if it cannot go on, set " +
			"blocked_by or plan_status needs_input, or call WaitFor; " +
			"if its objective is reached, write the report and call CompleteWorkItem in the same round; if this is " +
			"other work, pick or create that item.")
		if it != nil && len(it.GetTodoList()) > 0 && len(todos) == 0 {
			b.WriteString(" All its todos are completed.")
		}
	}

	// List the todos.
	for i, t := range todos {
		if i == reminderTodos {
			fmt.Fprintf(&b, "\n- and %d more", len(todos)-i)
			break
		}
		fmt.Fprintf(&b, "\n- [%s] %s", pbjson.EnumText(t.GetState()), utf8cut.Line(t.GetText(), tools.SummaryChars))
	}
	return b.String()
}
