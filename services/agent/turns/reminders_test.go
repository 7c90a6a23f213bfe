package turns

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	workv1 "quartet/pkg/pb/quartet/work/v1"
)

var openItem = &workv1.WorkItem{
	WorkItemId: "wi_1", Objective: "ship\nit", State: workv1.WorkItemState_WORK_ITEM_STATE_OPEN,
}

// Without the other plane the round goes on and the reminder is shorter.
func TestW11_AReminderNeedsNoOtherPlane(t *testing.T) {
	text := (&reminder{RemindWorkItem, "wi_1", 10}).Text(nil)
	require.Contains(t, text, "10 rounds have passed without a change of work item wi_1. If it advanced")

	many := proto.CloneOf(openItem)
	many.Objective, many.TodoList = strings.Repeat("世", 500), nil
	for i := range 200 {
		many.TodoList = append(many.TodoList, &workv1.TodoItem{
			Text:  fmt.Sprint(i, strings.Repeat("x", 999)),
			State: workv1.TodoState_TODO_STATE_PENDING,
		})
	}
	text = (&reminder{RemindTodoList, "wi_1", 10}).Text(many)
	require.Contains(t, text, "and 192 more")
	require.Less(t, len([]rune(text)), 1400, "a reminder is short whatever the item is")
}
