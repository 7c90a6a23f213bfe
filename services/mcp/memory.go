package mcp

import (
	"context"
	"slices"
	"strconv"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// The sets of tools that a client may choose.
const (
	// AllTools has every tool that the agent's profile and the caller's role allow. It is the
	// default.
	AllTools = "all"
	// MemoryTools has the tools that a coding agent needs for a durable memory, with short
	// schemas. Its list takes at most MemoryTokens of a context. Other tools cannot be called.
	MemoryTools = "memory"
)

// MemoryTokens limits the list of the set memory, in tokens of four bytes (SPEC C5.2).
const MemoryTokens = 2_000

// checkTools returns an error if a set of tools is unknown. Empty is the default.
func checkTools(set string) error {
	switch set {
	case "", AllTools, MemoryTools:
		return nil
	}
	return fault.Invalid("tools", set, "must be all or memory")
}

// short describes one tool of the set memory. Its schema has only these arguments, each with the type
// that the server gives it and this description; an empty description is left out.
type short struct {
	name, about string
	arguments   map[string]string
	required    []any // the required arguments, in place of those that the server's schema requires
}

// memoryTools is the set memory, in the order of use.
var memoryTools = []short{
	{name: "ListWorkItems", about: "List your work items, and the newest messages to you. Start here, with filter " +
		"open, at the start of a session and after a compaction.", arguments: map[string]string{
		"filter": "Default all.", "include_todo_list": "With the todos of each item.", "limit": "1 to 500, default 20.",
		"page_token": "next_page_token of the page before.",
	}},
	{name: "GetWorkItem", about: "Read one work item: objective, beginning and path of its plan, todos, blocker, " +
		"waits, report.", arguments: map[string]string{
		"work_item_id": "Default: the item in focus.",
	}},
	{
		name: "CreateWorkItem", about: "Create a work item: an objective that outlives this session. One for each " +
			"independent objective; steps of it are todos. Creating does not focus it; PickWorkItem does.",
		arguments: map[string]string{
			"objective":   "What is to be achieved, at most 2000 characters.",
			"plan":        "First text of its plan file, at most 16 KiB.",
			"plan_status": "ready if you know what to do. Default draft.",
			"todo_list":   "Steps, at most 200; text at most 1000 characters, state pending unless given.",
		},
	},
	{
		name: "PickWorkItem", about: "Focus the work item that you work on. One is in focus at a time.",
		arguments: map[string]string{
			"work_item_id": "", "reason": "Why, if you leave an item that you could go on with.",
		},
	},
	{
		name: "UpdateWorkItem", about: "Change a work item. Do it after each step, not at the end.",
		arguments: map[string]string{
			"work_item_id": "Default: the item in focus.", "objective": "", "plan_status": "",
			"todo_list": "The whole list, done ones included, which replaces the old one; one entry " +
				"in_progress.",
			"blocked_by": "Why it cannot go on; null clears it. Prefer WaitFor, which also records what it " +
				"waits for.",
			"expected_revision": "Refuse unless the item has this revision.",
		},
	},
	{name: "CompleteWorkItem", about: "Complete a work item. It never changes again.", arguments: map[string]string{
		"work_item_id": "Default: the item in focus.", report: "For the operator: what was done, how it was " +
			"verified, what is left. At most 256 KiB.",
	}},
	{name: "WaitFor", about: "Record that a work item waits. It leaves the focus and is shown as waiting until then; " +
		"this session goes on with another item.", arguments: map[string]string{
		"work_item_id": "Default: the item in focus.", "reason": "Why, for people.", "wake": "What it waits for.",
		"after": "timer: this long from now, such as 90s or 1h30m. Or at.", "at": "timer: at this time.",
		"resource": "task_result: the task's id. external: the trigger's id, if any.",
	}},
	{name: "HomeRead", about: "Read a file of your durable home. The plan of an item is " +
		"work-items/<work_item_id>/plan.md.", arguments: map[string]string{
		"path": "", "offset": "First byte.", "limit": "Bytes, default 65536, at most 1048576.",
	}},
	{name: "HomeWrite", about: "Write a whole file of your home, such as a plan. Name other files in the plan: later " +
		"sessions find them there.", arguments: map[string]string{
		"path": "", "text": "The whole content.",
		"expected_sha256": `Refuse unless the file has this hash; "absent": unless there is none.`,
	}, required: []any{"path", "text"}}, // the server also takes bytes instead of a text
	{name: "HomeEdit", about: "Replace text in a file of your home.", arguments: map[string]string{
		"path": "", "old_text": "Exact text, found once unless replace_all.", "new_text": "", "replace_all": "",
	}},
}

// memoryOf returns the tools of the set memory among listed ones. A tool that the agent's profile
// or the caller's role does not allow is not listed, and is missing here too.
func memoryOf(listed []*agentv1.ToolSpec) []*sdk.Tool {
	var out []*sdk.Tool
	for _, m := range memoryTools {
		i := slices.IndexFunc(listed, func(t *agentv1.ToolSpec) bool { return t.GetName() == m.name })
		if i < 0 {
			continue
		}
		t := toolOf(listed[i])
		schema, _ := t.InputSchema.(map[string]any)
		all, _ := schema["properties"].(map[string]any)
		properties := map[string]any{}
		for name, about := range m.arguments {
			p, ok := plain(all[name]).(map[string]any)
			if !ok {
				continue // a server of another version has no such argument
			}
			if about != "" {
				p["description"] = about
			}
			properties[name] = p
		}
		t.InputSchema = map[string]any{"type": "object", "properties": properties}
		required := schema["required"]
		if m.required != nil {
			required = m.required
		}
		if required != nil {
			t.InputSchema.(map[string]any)["required"] = required //nolint:forcetypeassert // set above
		}
		t.Description, t.OutputSchema = m.about, nil
		out = append(out, t)
	}
	return out
}

// plain returns a copy of a schema without its descriptions, patterns, defaults, encodings and
// additionalProperties: a model can do without them, and the server checks arguments in any case.
func plain(schema any) any {
	switch s := schema.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, v := range s {
			switch name {
			case "description", "pattern", "default", "additionalProperties", "contentEncoding":
			case "properties":
				below, _ := v.(map[string]any)
				properties := map[string]any{}
				for name, p := range below {
					properties[name] = plain(p)
				}
				out[name] = properties
			default:
				out[name] = plain(v)
			}
		}
		return out
	case []any:
		return slices.Clone(s)
	}
	return schema
}

// isMemoryTool reports whether the set memory has a tool.
func isMemoryTool(name string) bool {
	return slices.ContainsFunc(memoryTools, func(m short) bool { return m.name == name })
}

// notInMemory returns the refusal of a tool that the set memory does not have. It names the tools that the session has,
// unless the server does not list them now.
func (a *agentServer) notInMemory(ctx context.Context, name string) error {
	var names []string
	if got, err := a.agents.ListTools(a.as(ctx), &agentv1.ListToolsRequest{AgentId: a.agentID}); err == nil {
		for _, t := range memoryOf(got.GetTools()) {
			names = append(names, t.Name)
		}
	}
	text := "tool " + strconv.Quote(name) + " is not available"
	if len(names) > 0 {
		text += "; this session has the tools " + strings.Join(names, ", ")
	}
	return fault.ToolNotAvailable.New(text, "tool", name)
}
