package mcp

import (
	"context"
	"strings"

	"quartet/pkg/unread"
)

const (
	// shownMessages is how many messages a result shows at most, and messageBytes how much of each.
	shownMessages = 5
	messageBytes  = 4_000
)

// showsMessages has the tools whose results show messages in a session with the set memory, to which no turn brings
// them.
var showsMessages = map[string]bool{"ListWorkItems": true, "GetWorkItem": true, "PickWorkItem": true}

// messages returns what the result of a tool shows of the messages that no turn has taken. It returns nil if the
// session has another set than memory, if the tool is not in showsMessages, if there are no such messages, and if
// they cannot be read.
func (a *agentServer) messages(ctx context.Context, tool string) any {
	if a.tools != MemoryTools || !showsMessages[tool] {
		return nil
	}
	said, err := unread.Read(a.as(ctx), a.agents, a.agentID, shownMessages)
	if err != nil || said.Total == 0 {
		return nil
	}
	newest := make([]any, 0, len(said.Newest))
	for _, m := range said.Newest {
		newest = append(newest, strings.TrimSuffix(strings.TrimPrefix(unread.Line(m, messageBytes), "- "), "\n"))
	}
	return map[string]any{
		"not_taken_by_a_turn": said.Total, "newest": newest,
		"note": "They stay here until a turn takes them; what they ask for may be done already, as your work " +
			"items say.",
	}
}
