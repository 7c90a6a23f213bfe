package main

import (
	"context"
	"fmt"
	"strings"
)

// todosOf returns the todos of an item, which is the result of a tool.
func todosOf(it map[string]any) []map[string]any {
	list, _ := it["todo_list"].([]any)
	out := make([]map[string]any, 0, len(list))
	for _, v := range list {
		m, _ := v.(map[string]any)
		out = append(out, m)
	}
	return out
}

// with returns a copy of the whole list in which the entry at index has another state. UpdateWorkItem
// needs the whole list, since it replaces it.
func with(todos []map[string]any, index int, state string) []any {
	var list []any
	for i, td := range todos {
		s := str(td, "state")
		if i == index {
			s = state
		}
		list = append(list, map[string]any{"text": str(td, "text"), "state": s})
	}
	return list
}

// check advances the check of one package, by go vet and go test. It reads from the todos and the tasks
// of the item which of them are done.
func (t *turn) check(ctx context.Context, it map[string]any) error {
	id := str(it, "work_item_id")
	todos := todosOf(it)
	listed, err := t.act(ctx, "", "TaskList", map[string]any{"work_item_id": id, "include_terminal": true})
	if err != nil {
		return err
	}
	tasks, _ := listed["tasks"].([]any)
	var lines []string
	for i, td := range todos {
		command := str(td, "text")
		task := newest(tasks, command)
		state := str(task, "state")
		switch {
		case task == nil || state == "interrupted":
			// The command has not started, or its worker ended with the server. The control plane does
			// not repeat commands by itself, so the agent starts it again.
			return t.exec(ctx, id, todos, tasks, i, command)
		case state == "queued" || state == "running" || state == "cancelling":
			return t.await(ctx, str(task, "task_id"), command)
		}
		if str(td, "state") != "completed" {
			if _, err := t.act(ctx, "", "UpdateWorkItem",
				map[string]any{"work_item_id": id, "todo_list": with(todos, i, "completed")}); err != nil {
				return err
			}
			todos[i]["state"] = "completed"
		}
		line, err := t.outcome(ctx, task, command)
		if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	report := strings.TrimPrefix(str(it, "objective"), checkObjective) + ": " + strings.Join(lines, "; ")
	return t.complete(ctx, id, report)
}

// newest returns the first of tasks whose command.cmd is command, and nil if there is none. tasks must be sorted,
// newest first, so that it is the newest.
func newest(tasks []any, command string) map[string]any {
	for _, v := range tasks {
		m, _ := v.(map[string]any)
		if str(m, "command", "cmd") == command {
			return m
		}
	}
	return nil
}

func (t *turn) exec(ctx context.Context, id string, todos []map[string]any, tasks []any, i int, command string) error {
	update, err := call("UpdateWorkItem",
		map[string]any{"work_item_id": id, "todo_list": with(todos, i, "in_progress")})
	if err != nil {
		return err
	}
	run, err := call("ExecCommand", map[string]any{
		"cmd": command, "yield_time": "0s", "timeout": "300s",
		"work_item_id": id, "env": goEnv(),
	})
	if err != nil {
		return err
	}
	rs, err := t.round(ctx, "", update, run)
	if err != nil {
		return err
	}
	taskID := rs[1].GetResult().GetFields()["handle"].GetStructValue().GetFields()["task_id"].GetStringValue()
	t.k.tell.say("agent", "starts task %s: %s", short(taskID), command)
	if len(tasks) == 0 && strings.HasSuffix(command, " "+t.k.pkgs[0]) {
		// The first command compiles packages that the others need too. If they ran at the same time, each
		// would compile them itself.
		t.k.tell.say("agent", "looks on instead of taking up others: what this command compiles, they need too")
		t.k.follow(ctx, taskID, command)
	} else {
		go t.k.follow(context.WithoutCancel(ctx), taskID, command)
	}
	return t.await(ctx, taskID, command)
}

func (t *turn) await(ctx context.Context, taskID, command string) error {
	_, err := t.act(ctx, "", "WaitFor", map[string]any{
		"wake": "task_result", "resource": taskID,
		"reason": "result of " + command,
	})
	if err == nil {
		t.k.tell.say("agent", "waits for task %s; its turn ends, the runner is free", short(taskID))
	}
	return err
}

// failedPhrase is in the report of each package of which a command failed.
const failedPhrase = " FAILED "

// outcomeBytes is how much of the end of a command's output outcome reads.
const outcomeBytes = 48 << 10

// outcome returns a phrase about how a command ended. If tests failed, it names them.
func (t *turn) outcome(ctx context.Context, task map[string]any, command string) (string, error) {
	verb := strings.Join(strings.Fields(command)[:2], " ")
	if str(task, "state") == "completed" && verb == "go vet" {
		return "vet clean", nil
	}
	out, err := t.act(ctx, "", "TaskOutput", map[string]any{
		"task_id": str(task, "task_id"), "max_bytes": outcomeBytes,
		"offset": -outcomeBytes,
	})
	if err != nil {
		return "", err
	}
	last, tests := "", []string{}
	for _, line := range strings.Split(str(out, "text"), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		last = strings.Join(words, " ")
		if len(words) > 2 && words[0] == "---" && words[1] == "FAIL:" {
			tests = append(tests, words[2])
		}
	}
	if str(task, "state") == "completed" {
		return "tests pass (" + last + ")", nil
	}
	if len(tests) > 0 {
		last = strings.Join(tests, ", ")
	}
	return fmt.Sprintf("%s%s(%s)", verb, failedPhrase, last), nil
}

// complete completes an item. The text of the round becomes its report.
func (t *turn) complete(ctx context.Context, id, report string) error {
	_, err := t.act(ctx, report, "CompleteWorkItem", map[string]any{"work_item_id": id})
	if err == nil {
		t.k.tell.say("report", "%s", report)
	}
	return err
}

// approval advances the item for which an outside system must give its approval: it waits for a delivery
// of a trigger, and then completes the item. Nobody but the agent clears the item's blocker.
func (t *turn) approval(ctx context.Context, it map[string]any) error {
	id := str(it, "work_item_id")
	todos := todosOf(it)
	triggered, _ := it["has_triggered_waits"].(bool)
	switch {
	case triggered:
		t.k.tell.say("agent", "looks at %s: triggered, and still blocked by %q; it clears the blocker itself",
			short(id), str(it, "blocked_by"))
		if _, err := t.act(ctx, "", "UpdateWorkItem", map[string]any{
			"work_item_id": id, "blocked_by": nil, "todo_list": with(mark(todos), 1, "completed"),
		}); err != nil {
			return err
		}
		return t.complete(ctx, id, "The release board approved the release.")
	case str(it, "blocked_by") != "":
		return nil // woken for another reason
	}
	made, err := t.act(ctx, "", "CreateExternalTrigger",
		map[string]any{"work_item_id": id, "description": "release board"})
	if err != nil {
		return err
	}
	if _, err := t.act(ctx, "", "WaitFor", map[string]any{
		"wake": "external", "resource": str(made, "trigger", "trigger_id"), "reason": "the release board must approve",
		"work_item_id": id,
	}); err != nil {
		return err
	}
	t.k.tell.say("agent", "asks the board and waits; anybody with the secret URL can answer, nobody else")
	t.k.asks <- str(made, "url")
	return nil
}

// mark sets the first entry of the list to completed, and returns the list.
func mark(todos []map[string]any) []map[string]any {
	if len(todos) > 0 {
		todos[0]["state"] = "completed"
	}
	return todos
}

// mirrors advances the item that waits a few seconds with a timer.
func (t *turn) mirrors(ctx context.Context, it map[string]any) error {
	id := str(it, "work_item_id")
	todos := todosOf(it)
	if len(todos) == 1 && str(todos[0], "state") == "in_progress" {
		if _, err := t.act(ctx, "", "UpdateWorkItem",
			map[string]any{"work_item_id": id, "todo_list": with(todos, 0, "completed")}); err != nil {
			return err
		}
		return t.complete(ctx, id, "The mirrors had their seconds.")
	}
	update, err := call("UpdateWorkItem",
		map[string]any{"work_item_id": id, "todo_list": with(todos, 0, "in_progress")})
	if err != nil {
		return err
	}
	wait, err := call("WaitFor", map[string]any{
		"wake": "timer", "after": "4s", "reason": "mirrors need a few seconds",
		"work_item_id": id,
	})
	if err != nil {
		return err
	}
	_, err = t.round(ctx, "", update, wait)
	if err == nil {
		t.k.tell.say("agent", "waits 4 s for the mirrors; other items go on meanwhile")
	}
	return err
}

// short returns an id without its middle, for people to read.
func short(id string) string {
	if len(id) > 10 {
		return id[:4] + "…" + id[len(id)-6:]
	}
	return id
}
