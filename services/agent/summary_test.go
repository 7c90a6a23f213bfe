package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/state"
)

// sumUp submits a round with a summary.
func (r *rig) sumUp(a *agentv1.AcquireTurnResponse, index int32, text, through string) (*agentv1.SubmitRoundResponse,
	error,
) {
	return r.service.SubmitRound(r.runner(), &agentv1.SubmitRoundRequest{
		AgentId: a.GetTurn().GetAgentId(), TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(),
		RoundIndex: index, ConversationSummary: &agentv1.ConversationSummary{Text: text, ThroughTurnId: through},
	})
}

// conversationOf returns the section of a context, "" if there is none.
func conversationOf(c *agentv1.ContextProjection) string {
	for _, s := range c.GetSections() {
		if s.GetName() == "conversation" {
			return s.GetText()
		}
	}
	return ""
}

// From the next context on a summary stands in place of the words that it covers, until a later one
// replaces it, over restarts; the words can be read back, and the round with it is repeated
// (SPEC C7.5).
func TestC7_ASummaryStandsInPlaceOfTheWords(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	for i := range 6 {
		r.clk.Advance(time.Minute)
		r.send("keeper", fmt.Sprint("question ", i), normal)
		a := r.take("keeper")
		r.submit(a, 0, fmt.Sprint("answer ", i))
		r.finish(a, done)
	}
	r.send("keeper", "the seventh", normal)
	a := r.take("keeper")
	require.Contains(t, conversationOf(a.GetContext()), "> question 0\n")
	must.Value(r.sumUp(a, 0, "Six questions,\nsix answers.", ""))(t)
	again := must.Value(r.sumUp(a, 0, "Six questions,\nsix answers.", ""))(t, "a repetition gets the same response")
	require.False(t, again.GetTurnEnded())
	must.Refuse(r.sumUp(a, 0, "Other words.", ""))(t, fault.RequestIDReused)
	r.submit(a, 1, "answer to the seventh")
	turn := r.finish(a, done)

	const shown = "\n## Conversation (compact)\nSummary, by your runner, of what was said until 2026-03-01T12:06:00Z " +
		"(ReadConversation has the words):\n> Six questions,\n> six answers.\nOperator, "
	for _, when := range []string{"live", "after a restart", "after turns whose rounds left memory"} {
		r.send("keeper", "and "+when, normal)
		next := r.take("keeper")
		said := conversationOf(next.GetContext())
		require.True(t, strings.HasPrefix(said, shown), "%s: %s", when, said)
		require.NotContains(t, said, "question 5")
		require.Contains(t, said, "> the seventh\n")
		require.Contains(t, said, "> answer to the seventh\n")
		require.NotContains(t, said, "> and "+when)
		r.finish(next, done)
		r.restart()
		if when == "after a restart" {
			for range 3 {
				r.send("keeper", "more", normal)
				r.finish(r.take("keeper"), done)
			}
		}
	}
	require.Len(t, r.conversation(&agentv1.ListConversationRequest{Contains: "question"}).GetUtterances(), 6,
		"the words are kept")
	rounds := must.Value(r.service.ListRounds(r.operator(), &agentv1.ListRoundsRequest{
		AgentId: "keeper", TurnId: turn.GetTurnId(),
	}))(t)
	require.Equal(t, "Six questions,\nsix answers.", rounds.GetRounds()[1].GetConversationSummary().GetText())

	r.send("keeper", "the last", normal)
	a = r.take("keeper")
	must.Value(r.sumUp(a, 0, "All of it.", turn.GetTurnId()))(t)
	r.finish(a, done)
	c := must.Value(r.service.GetContext(r.operator(), &agentv1.GetContextRequest{AgentId: "keeper"}))(t)
	said := conversationOf(c.GetContext())
	require.Contains(t, said, "> All of it.\n")
	require.NotContains(t, said, "six answers")
	require.NotContains(t, said, "the seventh")
	require.Contains(t, said, "> and live\n", "what the named turn did not say follows in its words")
}

// Each limit of a summary, at, below and above it, and what is refused stores nothing.
func TestC7_SummariesThatAreNotTaken(t *testing.T) {
	r, a := turn(t)
	r.finish(a, done)
	r.send("keeper", "next", normal)
	b := r.take("keeper")
	for name, c := range map[string]struct{ text, through, field, says string }{
		"empty": {"", "", "conversation_summary.text", "is required"},
		"blank": {" \n", "", "conversation_summary.text", "more than blanks"},
		"too long": {
			strings.Repeat("x", state.MaxSummaryBytes+1), "", "conversation_summary.text",
			"2049 bytes, the limit is 2048",
		},
		"NUL":     {"a\x00", "", "conversation_summary.text", "NUL"},
		"no turn": {"x", "trn_none", "conversation_summary.through_turn_id", "newest 64 turns"},
		"this turn": {
			"x", b.GetTurn().GetTurnId(), "conversation_summary.through_turn_id",
			"must be a turn that has ended",
		},
		"a long name": {"x", strings.Repeat("t", 129), "conversation_summary.through_turn_id", "129 chars"},
	} {
		_, err := r.sumUp(b, 0, c.text, c.through)
		require.ErrorContains(t, err, c.says, name)
		require.Equal(t, c.field, fault.From(err).Metadata()["field"], name)
	}
	_, err := r.sumUp(b, 0, strings.Repeat("x", state.MaxSummaryBytes-1), "")
	require.NoError(t, err, "none of the refused rounds was stored")
	must.Value(r.sumUp(b, 1, strings.Repeat("x", state.MaxSummaryBytes), ""))(t)
	r.finish(b, done)
	r.send("keeper", "another", normal)
	next := r.take("keeper")
	must.Value(r.sumUp(next, 0, "older", a.GetTurn().GetTurnId()))(t, "through the same turn")
	must.Value(r.sumUp(next, 1, "newer", b.GetTurn().GetTurnId()))(t)
	_, err = r.sumUp(next, 2, "older", a.GetTurn().GetTurnId())
	require.ErrorContains(t, err, "must be "+b.GetTurn().GetTurnId()+" or a later turn")
}

// A deleted agent keeps no summary.
func TestC7_ADeletedAgentHasNoSummary(t *testing.T) {
	r, a := turn(t)
	must.Value(r.sumUp(a, 0, "before", ""))(t)
	r.finish(a, done)
	context := func() string {
		c := must.Value(r.service.GetContext(r.operator(), &agentv1.GetContextRequest{AgentId: "keeper"}))(t)
		return c.GetContext().GetText()
	}
	require.Contains(t, context(), "> before\n")
	must.Value(r.service.DeleteAgent(r.operator(), &agentv1.DeleteAgentRequest{AgentId: "keeper"}))(t)
	r.eventually(func() bool { return !strings.Contains(context(), "> before\n") })
}
