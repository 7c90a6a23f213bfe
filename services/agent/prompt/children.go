package prompt

import (
	"fmt"
	"slices"
	"strings"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// Child is an open delegation with the posture of its child in one word, such as running_turn.
type Child struct {
	Delegation *agentv1.Delegation
	Standing   string
}

// questionBytes is how much of a child's question a context shows.
const questionBytes = 600

const childrenTitle = "Children that work for you"

// childEntries returns an entry for each child, those that ask something first.
func childEntries(children []Child) []string {
	children = slices.Clone(children)
	slices.SortStableFunc(children, func(a, b Child) int {
		return oneIf(len(b.Delegation.GetQuestions()) > 0) - oneIf(len(a.Delegation.GetQuestions()) > 0)
	})

	var entries []string
	for _, c := range children {
		var b strings.Builder
		d := c.Delegation
		quoted := d.GetQuestions()[:min(shownQuestions, len(d.GetQuestions()))]
		others := d.GetQuestions()[len(quoted):]

		// Which child it is, and what it does.
		fmt.Fprintf(&b, "- %s (task %s) %s: %s", d.GetChildAgentId(), d.GetTaskId(), c.Standing,
			oneLine(d.GetLabel(), lineChars))
		if d.GetParentWorkItemId() != "" {
			fmt.Fprintf(&b, " (for %s)", d.GetParentWorkItemId())
		}
		b.WriteString("\n")

		// What it asks.
		for _, q := range quoted {
			fmt.Fprintf(&b, "  It waits for your answer (TaskInput, task_id %s, wait_id %s). It asks, %s:\n",
				d.GetTaskId(), q.GetWaitId(), atTime(q.GetAskedAt()))
			b.WriteString(quoteWithin(q.GetText(), questionBytes))
			if len(q.GetText()) > questionBytes-len("> \n") {
				fmt.Fprintf(&b, "  [cut: the question has %d bytes]\n", len(q.GetText()))
			}
		}
		for _, q := range others {
			fmt.Fprintf(&b, "  It also asks (wait_id %s): %s\n", q.GetWaitId(), oneLine(q.GetText(), lineChars/2))
		}
		if len(d.GetQuestions()) > 1 {
			b.WriteString("  Say which question you answer with its wait_id: without it your message ends none of " +
				"several.\n")
		}
		entries = append(entries, b.String())
	}
	return entries
}

// shownQuestions is how many questions of one child a context quotes; of the others it shows the
// beginning.
const shownQuestions = 3
