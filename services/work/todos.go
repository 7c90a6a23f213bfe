package work

import (
	"fmt"

	"quartet/pkg/fault"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// validTodos checks the number of todos and the text and state of each.
func validTodos(todos []*workv1.TodoItem) error {
	if err := fault.Entries("todo_list", len(todos), fault.MaxTodoEntries); err != nil {
		return err
	}
	for i, t := range todos {
		field := fmt.Sprintf("todo_list[%d].text", i)
		if err := fault.First(
			fault.Text(field, t.GetText(), fault.MaxTodoTextChars, true),
			fault.NotBlank(field, t.GetText()),
		); err != nil {
			return err
		}
		switch t.GetState() {
		case workv1.TodoState_TODO_STATE_PENDING, workv1.TodoState_TODO_STATE_IN_PROGRESS,
			workv1.TodoState_TODO_STATE_COMPLETED:
		case workv1.TodoState_TODO_STATE_UNSPECIFIED:
			fallthrough
		default:
			return fault.Invalid(fmt.Sprintf("todo_list[%d].state", i), t.GetState().String(),
				"must be pending, in_progress or completed")
		}
	}
	return nil
}

// todoWarnings returns a warning if more than one entry is in progress (SPEC W5).
func todoWarnings(todos []*workv1.TodoItem) []*workv1.Warning {
	n := 0
	for _, t := range todos {
		if t.GetState() == workv1.TodoState_TODO_STATE_IN_PROGRESS {
			n++
		}
	}
	if n < 2 {
		return nil
	}
	return []*workv1.Warning{{
		Kind:            workv1.WarningKind_WARNING_KIND_SEVERAL_IN_PROGRESS,
		Message:         fmt.Sprintf("%d todos are in progress; normally at most one is.", n),
		InProgressCount: int32(n),
	}}
}
