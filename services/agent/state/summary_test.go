package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// speaker folds turns of one agent.
type speaker struct {
	t   require.TestingT
	s   *State
	seq uint64
	n   int
}

func newSpeaker(t require.TestingT) *speaker {
	p := &speaker{t: t, s: NewState()}
	p.apply(&agentv1.AgentSpawned{Agent: &agentv1.Agent{AgentId: "keeper"}})
	return p
}

func (p *speaker) apply(payload proto.Message) {
	p.seq++
	require.NoError(p.t,
		p.s.Apply(&journal.Event{
			Namespace: "n", AgentID: "keeper", WalSeq: p.seq, CreatedAt: time.Unix(int64(p.seq), 0), Payload: payload,
		}))
}

func (p *speaker) agent() *Agent {
	return must.Value(p.s.Find("n", "keeper"))(p.t)
}

// begin starts a turn about a message, which is queued unless it is known.
func (p *speaker) begin(m *agentv1.Message) *agentv1.Turn {
	p.n++
	if p.agent().Lane.Get(m.GetMessageId()) == nil {
		p.apply(&agentv1.MessageQueued{Message: m})
	}
	t := &agentv1.Turn{
		TurnId: fmt.Sprint("trn_", p.n), MessageId: m.GetMessageId(), RunId: "run",
		Binding: agentv1.Binding_BINDING_CURRENT, StartedAt: timestamppb.New(time.Unix(int64(p.seq), 0)),
	}
	if m.GetWorkItemId() != "" {
		t.Binding, t.BoundWorkItemId, t.WorkItemId = agentv1.Binding_BINDING_MESSAGE, m.GetWorkItemId(),
			m.GetWorkItemId()
	}
	p.apply(&agentv1.TurnStarted{Turn: t})
	return t
}

func (p *speaker) round(t *agentv1.Turn, text string, sum *agentv1.ConversationSummary) {
	p.apply(&agentv1.RoundSubmitted{
		Round: &agentv1.Round{
			TurnId: t.GetTurnId(), Index: p.agent().OpenTurn.Record.GetRounds(), Text: text,
			WorkItemId: t.GetWorkItemId(), ConversationSummary: sum,
		},
	})
}

func (p *speaker) end(t *agentv1.Turn) {
	t.EndedAt = timestamppb.New(time.Unix(int64(p.seq), 0))
	p.apply(&agentv1.TurnCompleted{Turn: t})
}

// A context shows the summary of the turn's item, else that of turns without one, and the newest
// words that it does not cover, together within the bound; between two summaries the beginning
// stays for many turns. An agent keeps a bounded number of summaries (SPEC C7.5).
func TestC7_SummariesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 4096
		p := newSpeaker(t)
		items := rapid.IntRange(0, 2*keptSummaries).Draw(t, "items")
		type place struct {
			item string
			at   uint64
		}
		var said []place
		newest := map[string]int{} // by item, what its summary covers
		for range rapid.IntRange(1, 60).Draw(t, "turns") {
			item := ""
			if i := rapid.IntRange(-3, items).Draw(t, "item"); i > 0 {
				item = fmt.Sprint("wi_", i)
			}
			turn := p.begin(prompt(fmt.Sprint("msg_", p.n), item))
			before := len(said)
			said = append(said, place{item, p.agent().Lane.QueuedAt(turn.GetMessageId())})
			var sum *agentv1.ConversationSummary
			if rapid.IntRange(0, 3).Draw(t, "sum up") == 0 {
				sum = &agentv1.ConversationSummary{
					Text: strings.Repeat("s", rapid.IntRange(1, MaxSummaryBytes).Draw(t, "bytes")),
				}
				newest[item] = before
			}
			p.round(turn, "", sum)
			p.end(turn)
			c := &p.agent().Conversation
			require.LessOrEqual(t, len(c.summaries), keptSummaries)
			s, tail, left := c.Tail(item, limit, 0)
			bytes := 0
			for _, u := range tail {
				bytes += u.Bytes
			}
			if s == nil {
				require.LessOrEqual(t, bytes, limit)
				continue
			}
			require.Contains(t, []string{"", item}, s.ItemID)
			require.LessOrEqual(t, bytes+s.bytes, limit)
			require.Equal(t, newest[s.ItemID], s.covered)
			shown := map[uint64]bool{}
			for _, u := range tail {
				shown[u.At] = true
			}
			for n, u := range said {
				concerns := u.item == "" || u.item == item
				inSummary := n < s.covered && (u.item == "" || u.item == s.ItemID)
				switch {
				case !concerns || inSummary:
					require.False(t, shown[u.at])
				case left == 0:
					require.True(t, shown[u.at], "what the summary does not cover is shown, or counted as left out")
				}
			}
		}
	})
}

// After a summary the tail grows at its end, and its beginning moves in steps: what a context
// begins with stays the same.
func TestC7_AfterASummaryTheTailMovesInSteps(t *testing.T) {
	p := newSpeaker(t)
	moves, last, n := 0, uint64(0), 300
	for i := range n {
		turn := p.begin(prompt(fmt.Sprint("msg_", i), ""))
		var sum *agentv1.ConversationSummary
		if i == 20 {
			sum = &agentv1.ConversationSummary{Text: strings.Repeat("s", MaxSummaryBytes)}
		}
		p.round(turn, "", sum)
		p.end(turn)
		if i < 20 {
			continue
		}
		s, tail, _ := p.agent().Conversation.Tail("", 4096, 0)
		require.Equal(t, 20, s.covered)
		require.NotEmpty(t, tail)
		if tail[0].At != last {
			moves, last = moves+1, tail[0].At
		}
		if i == 25 {
			require.Equal(t, 1, moves, "six utterances fit beside the largest summary")
		}
	}
	require.Less(t, moves, n/2)
}

// The default covers what was said before the message of the turn, also when the message was
// handed out before; it never covers less than the current summary.
func TestC7_WhatASummaryCovers(t *testing.T) {
	p := newSpeaker(t)
	sum := &agentv1.ConversationSummary{Text: "all"}
	covers := func(through string) int {
		s := must.Value(p.agent().SummaryOf(&agentv1.ConversationSummary{Text: "x", ThroughTurnId: through}))(t)
		return s.covered
	}
	first := p.begin(prompt("msg_a", ""))
	require.Zero(t, covers(""), "nothing was said before")
	p.round(first, "an answer", nil)
	p.end(first)
	retried := prompt("msg_b", "")
	second := p.begin(retried)
	require.Equal(t, 2, covers(""))
	p.round(second, "so far", nil)
	second.State = agentv1.TurnState_TURN_STATE_FAILED
	p.apply(&agentv1.TurnFailed{Turn: second})
	p.apply(&agentv1.MessageRequeued{Message: retried})
	urgent := p.begin(prompt("msg_c", ""))
	require.Equal(t, 4, covers(""))
	require.Equal(t, 2, covers(first.GetTurnId()))
	require.Equal(t, 4, covers(second.GetTurnId()), "with the words of the turn that is named")
	p.end(urgent)
	third := p.begin(retried)
	require.Equal(t, 2, covers(""), "the message of the turn and what was said about it are not summed up")
	p.round(third, "", &agentv1.ConversationSummary{Text: "x", ThroughTurnId: urgent.GetTurnId()})
	require.Equal(t, 5, covers(""), "never less than the current one")
	_, err := p.agent().SummaryOf(&agentv1.ConversationSummary{Text: "x", ThroughTurnId: first.GetTurnId()})
	require.ErrorContains(t, err, "must be "+urgent.GetTurnId()+" or a later turn")
	_, err = p.agent().SummaryOf(&agentv1.ConversationSummary{Text: "x", ThroughTurnId: third.GetTurnId()})
	require.ErrorContains(t, err, "must be a turn that has ended")
	_, err = p.agent().SummaryOf(&agentv1.ConversationSummary{Text: "x", ThroughTurnId: "trn_99"})
	require.ErrorContains(t, err, "must be one of the newest 64 turns")
	require.Equal(t, 5, covers(urgent.GetTurnId()), "as much as the current one is not less")

	// Of another item the agent's words are as before: its runner has not summed them up.
	p.end(third)
	other := p.begin(prompt("msg_d", "wi_1"))
	s, tail, _ := p.agent().Conversation.Tail("wi_1", 4096, 0)
	require.Empty(t, s.ItemID, "turns on an item without a summary show that of turns without an item")
	require.Len(t, tail, 1)
	p.round(other, "", sum)
	s, _, _ = p.agent().Conversation.Tail("wi_1", 4096, 0)
	require.Equal(t, "wi_1", s.ItemID)
	s, _, _ = p.agent().Conversation.Tail("", 4096, 0)
	require.Empty(t, s.ItemID)
	p.end(other)
}
