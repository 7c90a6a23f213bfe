package state

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

func prompt(id, itemID string) *agentv1.Message {
	return &agentv1.Message{
		MessageId: id, Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, WorkItemId: itemID,
		Text: strings.Repeat("x", 100),
	}
}

// The tail is what concerns the turn's item, never larger than its bound, and its beginning
// stays for many utterances before it moves (SPEC C7.1).
func TestC7_TheTailMovesInSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 2000
		var c Conversation
		var said []Utterance
		moves, last := 0, Utterance{}
		n := rapid.IntRange(1, 400).Draw(t, "utterances")
		for i := range n {
			turn := &agentv1.Turn{
				MessageId: fmt.Sprint("msg_", i), Binding: agentv1.Binding_BINDING_MESSAGE,
				BoundWorkItemId: rapid.SampledFrom([]string{"", "wi_a", "wi_b"}).Draw(t, "item"),
			}
			if turn.GetBoundWorkItemId() == "" {
				turn.Binding = agentv1.Binding_BINDING_CURRENT // of whatever item: the message named none
			}
			c.hear(prompt(turn.GetMessageId(), turn.GetBoundWorkItemId()), uint64(i+1), turn)
			c.hear(prompt(turn.GetMessageId(), turn.GetBoundWorkItemId()), uint64(i+1), turn) // a second attempt
			said = append(said, Utterance{Round: -1, At: uint64(i + 1), ItemID: turn.GetBoundWorkItemId()})
			_, tail, left := c.Tail("wi_a", limit, 0)
			bytes := 0
			for _, u := range tail {
				bytes += u.Bytes
				require.NotEqual(t, "wi_b", u.ItemID)
			}
			require.LessOrEqual(t, bytes, limit)
			if left > 0 && i < keptUtterances {
				require.Greater(t, bytes, limit/2, "no more is left out than a step")
			}
			if len(tail) > 0 && tail[0].At != last.At {
				moves, last = moves+1, tail[0]
			}
		}
		mine := 0
		for _, u := range said {
			if u.ItemID != "wi_b" {
				mine++
			}
		}
		if mine > 60 {
			require.Less(t, moves, mine/2, "the beginning moves in steps")
		}
		_, without, _ := c.Tail("wi_a", limit, uint64(n))
		for _, u := range without {
			require.NotEqual(t, uint64(n), u.At, "the message of the turn is not part of it")
		}
	})
}

// What an operator says without naming an item concerns every turn, and so does the answer;
// what is said about an item concerns that item's turns.
func TestC7_WhatConcernsATurn(t *testing.T) {
	var c Conversation
	current := &agentv1.Turn{MessageId: "msg_1", Binding: agentv1.Binding_BINDING_CURRENT, BoundWorkItemId: "wi_a"}
	c.hear(prompt("msg_1", ""), 1, current)
	c.say(&agentv1.Round{Text: "yes", WorkItemId: "wi_a"}, 0, 0, prompt("msg_1", ""), current)
	answered := &agentv1.Turn{MessageId: "msg_2", Binding: agentv1.Binding_BINDING_WAIT, BoundWorkItemId: "wi_b"}
	c.hear(prompt("msg_2", ""), 2, answered)
	c.say(&agentv1.Round{Text: "the second", WorkItemId: "wi_b"}, 1, 0, prompt("msg_2", ""), answered)
	tick := &agentv1.Message{MessageId: "msg_3", Kind: agentv1.MessageKind_MESSAGE_KIND_SYSTEM_TICK}
	c.say(&agentv1.Round{Text: "working", WorkItemId: "wi_a"}, 2, 0, tick,
		&agentv1.Turn{MessageId: "msg_3", BoundWorkItemId: "wi_a"})
	c.say(&agentv1.Round{Text: "  ", WorkItemId: "wi_a"}, 3, 0, tick, &agentv1.Turn{MessageId: "msg_3"})
	c.hear(&agentv1.Message{
		MessageId: "msg_4", Kind: agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT, Text: "evidence",
	}, 3, &agentv1.Turn{MessageId: "msg_4"})
	count := func(itemID string) int { _, tail, _ := c.Tail(itemID, 10_000, 0); return len(tail) }
	require.Equal(t, 3, count("wi_a"))
	require.Equal(t, 4, count("wi_b"))
	require.Equal(t, 2, count(""))
}
