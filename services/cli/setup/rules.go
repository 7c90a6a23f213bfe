package setup

import (
	"bytes"
	"errors"
	"strings"
)

// Marks around the rules in a file that has other text too.
const (
	rulesBegin = "<!-- quartet: begin -->"
	rulesEnd   = "<!-- quartet: end -->"
)

// cursorHead is the head of a file of rules that Cursor always applies.
const cursorHead = "---\ndescription: Keep the work in Quartet\nalwaysApply: true\n---\n\n"

// rules tell a model to keep its work in Quartet. The instructions of the MCP server tell it how.
const rules = rulesBegin + `
## Work is kept in Quartet

Objectives, plans, todos and reports of this project are in Quartet (MCP server "quartet", agent AGENT), because they survive
compactions, sessions and crashes there.

- At the start of a session and after a compaction: ListWorkItems with filter open, read the plan of the item to continue
  (HomeRead), then PickWorkItem. Do this before any other work, unless the open work is in the context already.
- A new objective: CreateWorkItem, then PickWorkItem. A step of it is a todo, not an item.
- After each step: UpdateWorkItem with the whole todo_list. Decisions and their reasons go into the plan (HomeWrite, HomeEdit).
- Done: CompleteWorkItem with a report. Cannot continue: WaitFor with the reason.
` + rulesEnd + "\n"

// editRules enters the rules between their marks, or removes them. head is the text before them in a file of their own;
// with it, the file is replaced and removed as a whole.
func editRules(head string) edit {
	return func(old []byte, w wanted, remove bool) ([]byte, error) {
		text := strings.Replace(rules, "AGENT", w.agent, 1)
		if head != "" {
			if remove {
				if !bytes.Contains(old, []byte(rulesBegin)) {
					return old, nil
				}
				return nil, nil
			}
			if string(old) == head+text {
				return old, nil
			}
			return []byte(head + text), nil
		}
		begin, end := bytes.Index(old, []byte(rulesBegin)), bytes.Index(old, []byte(rulesEnd))
		if (begin < 0) != (end < 0) || end < begin || bytes.Count(old, []byte(rulesBegin)) > 1 ||
			bytes.Count(old, []byte(rulesEnd)) > 1 {
			return nil, errors.New("the marks " + rulesBegin + " and " + rulesEnd +
				" do not enclose one text; remove what is left of it")
		}
		if begin < 0 {
			if remove {
				return old, nil
			}
			before := bytes.TrimRight(old, "\n")
			if len(before) > 0 {
				before = append(bytes.Clone(before), "\n\n"...)
			}
			return append(before, text...), nil
		}
		end += len(rulesEnd)
		if end < len(old) && old[end] == '\n' {
			end++
		}
		if !remove {
			if string(old[begin:end]) == text {
				return old, nil
			}
			return append(append(bytes.Clone(old[:begin]), text...), old[end:]...), nil
		}
		before, after := bytes.TrimRight(old[:begin], "\n"), bytes.TrimLeft(old[end:], "\n")
		out := bytes.Clone(before)
		switch {
		case len(before) > 0 && len(after) > 0:
			out = append(out, "\n\n"...)
		case len(before) > 0:
			out = append(out, '\n')
		}
		if out = append(out, after...); len(bytes.TrimSpace(out)) == 0 {
			return nil, nil
		}
		return out, nil
	}
}
