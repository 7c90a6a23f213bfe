package tools

import (
	"fmt"
	"time"

	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
)

// adaptCreate gives todos without a state the state pending.
func adaptCreate(args map[string]any, _ time.Duration) { defaultTodoState(args["todo_list"]) }

func defaultTodoState(list any) {
	entries, _ := list.([]any)
	for _, e := range entries {
		if todo, ok := e.(map[string]any); ok && todo["state"] == nil {
			todo["state"] = pbjson.EnumText(workv1.TodoState_TODO_STATE_PENDING)
		}
	}
}

// adaptUpdate accepts todo_list as a list, and null to clear the blocker or the reminder.
func adaptUpdate(args map[string]any, _ time.Duration) {
	defaultTodoState(args["todo_list"])
	if list, ok := args["todo_list"].([]any); ok {
		args["todo_list"] = map[string]any{"items": list}
	}
	for _, field := range []string{"blocked_by", "recheck_at"} {
		if v, given := args[field]; given && v == nil {
			delete(args, field)
			args["clear_"+field] = true
		}
	}
}

// adaptGet accepts include_todo_list; the message has omit_todo_list.
func adaptGet(args map[string]any, _ time.Duration) {
	if include, ok := args["include_todo_list"].(bool); ok {
		delete(args, "include_todo_list")
		args["omit_todo_list"] = !include
	}
}

// adaptList accepts limit for page_size, and leaves plan previews out unless the caller asks
// for them: a list of 31 items with previews takes more than 10 000 tokens of a context.
func adaptList(args map[string]any, _ time.Duration) {
	if _, given := args["omit_plan_previews"]; !given {
		args["omit_plan_previews"] = true
	}
	if limit, given := args["limit"]; given && args["page_size"] == nil {
		delete(args, "limit")
		args["page_size"] = limit
	}
}

// commandFields are the fields of ExecCommand's command. In the tool's arguments they
// stand beside the others.
var commandFields = []string{
	"cmd", "argv", "workdir", "env", "tty", "accepts_input", "timeout", "pool",
	"worker_labels", "limits", "restart_policy",
}

// adaptExec moves the command's fields into the command and limits yield_time to what is
// left of the round's time.
func adaptExec(args map[string]any, left time.Duration) {
	command := map[string]any{}
	for _, f := range commandFields {
		if v, ok := args[f]; ok {
			command[f] = v
			delete(args, f)
		}
	}
	if _, given := args["command"]; !given {
		args["command"] = command
	}
	left = max(left, 0)
	wanted := 10 * time.Second
	if given, ok := args["yield_time"]; ok {
		v, _ := given.(string)
		d, err := time.ParseDuration(v)
		if err != nil {
			return // decoding the request reports what is wrong with it
		}
		wanted = d
	}
	if wanted > left {
		wanted = left
	}
	args["yield_time"] = fmt.Sprintf("%.3fs", wanted.Seconds())
}
