package prompt

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// conversationWithin returns the conversation of a context with a summary of 300 bytes and three
// utterances of 200 bytes each, within a budget of tokens.
func conversationWithin(t *testing.T, budget, earlier int) (string, agentv1.SectionOutcome) {
	t.Helper()
	said := func(name string) Said {
		return Said{Who: "Operator", Ref: "msg_" + name, At: "2026-03-01T13:00:00Z", Text: name +
			strings.Repeat(".", 199)}
	}
	sections := must.Value(Render(Input{
		Queue: &workv1.GetWorkQueueResponse{Counts: &workv1.WorkQueueCounts{}}, Earlier: earlier,
		Summary: &Summary{Text: "S" + strings.Repeat(",", 299), Through: "2026-03-01T12:00:00Z"}, Conversation: []Said{
			said("a"), said("b"), said("c"),
		},
	}, budget))(t)
	for _, s := range sections {
		if s.GetName() == sectionConversation {
			return s.GetText(), s.GetOutcome()
		}
	}
	return "", agentv1.SectionOutcome_SECTION_OUTCOME_OMITTED
}

// Where there is no room for all, the older of the newer words go first, then the summary; the
// section says what is left out and which tool has the words (SPEC C7.5).
func TestC7_WhatASummaryGivesWayTo(t *testing.T) {
	const head = "Summary, by your runner, of what was said until 2026-03-01T12:00:00Z (ReadConversation has the " +
		"words):\n> S,"
	all, how := conversationWithin(t, 1200, 0)
	require.Equal(t, agentv1.SectionOutcome_SECTION_OUTCOME_COMPACT, how)
	require.True(t, strings.HasPrefix(all, "\n## Conversation (compact)\n"+head), all)
	require.Contains(t, all, "> a.")
	require.Contains(t, all, "> c.")
	require.NotContains(t, all, "left out")

	some, how := conversationWithin(t, 1200, 900)
	require.Equal(t, agentv1.SectionOutcome_SECTION_OUTCOME_TRUNCATED, how)
	require.Contains(t, some, ",\n[parts after that are left out; ReadConversation has all of it]\nOperator, msg_a")

	seen := map[string]bool{}
	for budget := 1200; budget > 100; budget -= 10 {
		text, how := conversationWithin(t, budget, 0)
		summary := strings.Contains(text, "> S"+strings.Repeat(",", 299)+"\n")
		newest := strings.Contains(text, "> c"+strings.Repeat(".", 199)+"\n")
		switch {
		case strings.Contains(text, "> a."):
			require.True(t, summary && newest)
		case summary && newest:
			seen["half"] = true
			require.Contains(t, text, "left out; ReadConversation has all of it")
		case newest:
			seen["newest"] = true
			require.Contains(t, text, "[earlier parts are left out; ReadConversation has all of it]")
		case strings.Contains(text, "\n> S"):
			seen["summary"] = true
		default:
			require.Equal(t, agentv1.SectionOutcome_SECTION_OUTCOME_OMITTED, how, text)
		}
	}
	require.Equal(t, map[string]bool{"half": true, "newest": true, "summary": true}, seen)
}

// What was removed is not promised: neither the words that a summary covers, nor older parts, nor what was done for the
// item.
func TestA15_AContextSaysWhatWasRemoved(t *testing.T) {
	in := Input{
		Queue: &workv1.GetWorkQueueResponse{Counts: &workv1.WorkQueueCounts{}}, Item: &workv1.WorkItem{
			WorkItemId: "wi_1", Objective: "go on",
		},
		Summary: &Summary{Text: "S", Through: "2026-03-01T12:00:00Z"}, Earlier: 9, Conversation: []Said{
			{Who: "Operator", Ref: "msg_1", Text: "hello"},
		},
		Notes: []string{"- done: it\n"},
	}
	text := func() string {
		return Text(must.Value(Render(in, DefaultBudget))(t))
	}
	require.Contains(t, text(), "of what was said until 2026-03-01T12:00:00Z (ReadConversation has the words):\n")
	require.Contains(t, text(), "\n## Notes on it, from what was done\n- done: it\n")
	require.NotContains(t, text(), "removed")

	in.Since, in.DoneSince = "2026-02-03T00:00:00Z", "2026-02-04T00:00:00Z"
	require.Contains(t, text(), "of what was said until 2026-03-01T12:00:00Z (ReadConversation has the words since "+
		"2026-02-03T00:00:00Z; older words were removed because of their age):\n")
	require.Contains(t, text(), "[parts after that are left out; ReadConversation has what was said since "+
		"2026-02-03T00:00:00Z; what was said before was removed because of its age]\n")
	require.Contains(t, text(), "\n## Notes on it, from what was done since 2026-02-04T00:00:00Z; your older rounds "+
		"for it were removed because of their age\n- done: it\n")

	in.Since, in.Summary.Through = "2026-03-02T00:00:00Z", "2026-03-01T23:59:59Z"
	require.Contains(t, text(), "of what was said until 2026-03-01T23:59:59Z (the words were removed because of "+
		"their age):\n")
}
