//go:build !nomodels

package runner_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/runner"
)

// talk makes a conversation that is too long for a context.
func (r *rig) talk(kind string) {
	for i := range 16 {
		r.say(fmt.Sprintf("My locker has the code %d. %s", 7000+i, strings.Repeat("You may forget this part. ", 15)),
			agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(r.t,
			r.run(newProvider(r.t, kind, func(int, asked) answer { return answer{text: fmt.Sprintf("Noted %d.", i)} }),
				nil))
	}
}

func (r *rig) context() string {
	c := must.Value(r.Agents.GetContext(context.Background(), &agentv1.GetContextRequest{AgentId: "keeper"}))(r.t)
	return c.GetContext().GetText()
}

// With Summaries the model sums up the older conversation in the first round of a turn whose context
// leaves some out: it gets the words that are left out, once, and the next context has its summary
// (SPEC C7.6).
func TestC7_TheModelSumsUp(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		r.talk(kind)
		asksForSummary := func(a asked) bool { return strings.HasPrefix(a.system, "Sum up the conversation") }
		p := newProvider(t, kind, func(_ int, a asked) answer {
			if asksForSummary(a) {
				return answer{text: " The operator told the codes 7000 to 7015.\n" + strings.Repeat("and so on ", 300)}
			}
			return answer{text: "Yes."}
		})
		with := func(cfg *runner.Config) { cfg.Summaries = true }
		r.say("Do you remember?", agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(t, r.run(p, with))
		asks := p.all()
		require.Len(t, asks, 2)
		require.NotContains(t, asks[0].system, "the code 7000")
		require.True(t, asksForSummary(asks[1]))
		require.Empty(t, asks[1].tools)
		require.Contains(t, asks[1].texts[0], "My locker has the code 7000.")
		require.Less(t, strings.Index(asks[1].texts[0], "code 7000"), strings.LastIndex(asks[1].texts[0], "code 7015"),
			"oldest first")
		require.NotContains(t, asks[1].texts[0], "Do you remember?")
		require.Len(t, r.events("summary"), 1)

		got := must.Value(r.Agents.GetTurn(context.Background(), &agentv1.GetTurnRequest{
			AgentId: "keeper", TurnId: r.lastTurn().GetTurnId(),
		}))(t)
		require.EqualValues(t, 50, got.GetRounds()[0].GetUsage().GetInputTokens(), "what it took is part of the round")
		require.LessOrEqual(t, len(got.GetRounds()[0].GetConversationSummary().GetText()), 2048)
		require.Contains(t, r.context(), "> The operator told the codes 7000 to 7015.\n")
		require.Contains(t, r.context(), "> Do you remember?\n")

		r.say("Good.", agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(t, r.run(p, with))
		require.Len(t, p.all(), 3, "nothing is left out any more")
	})
}

// Without Summaries the model is asked for none. A summary that cannot be had delays no turn.
func TestC7_ASummaryThatCannotBeHad(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		r := newRig(t)
		r.talk(kind)
		p := newProvider(t, kind, func(_ int, a asked) answer {
			if strings.HasPrefix(a.system, "Sum up the conversation") {
				return answer{status: 500, body: `{"error":{"message":"overloaded"}}`}
			}
			return answer{text: "Yes."}
		})
		r.say("Do you remember?", agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(t, r.run(p, nil))
		require.Len(t, p.all(), 1)
		r.say("Do you?", agentv1.Priority_PRIORITY_NORMAL)
		require.NoError(t, r.run(p, func(cfg *runner.Config) { cfg.Summaries = true }))
		require.Len(t, p.all(), 3)
		require.Equal(t, agentv1.TurnState_TURN_STATE_COMPLETED, r.lastTurn().GetState())
		notices := r.events("notice")
		require.Len(t, notices, 1)
		require.Contains(t, notices[0]["text"], "there is no summary of the older conversation")
		require.Empty(t, r.events("summary"))
		require.NotContains(t, r.context(), "Summary, by your runner")
	})
}
