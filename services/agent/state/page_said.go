package state

import (
	"fmt"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// itemTable numbers work items from 1, in the order in which number is first called with them. 0 is no item.
type itemTable struct {
	ids     []string
	numbers map[string]uint32
}

// number returns the number of an item, 0 for "".
func (t *itemTable) number(itemID string) uint32 {
	if itemID == "" {
		return 0
	}
	n, known := t.numbers[itemID]
	if !known {
		if t.numbers == nil {
			t.numbers = map[string]uint32{}
		}
		t.ids = append(t.ids, itemID)
		n = uint32(len(t.ids))
		t.numbers[itemID] = n
	}
	return n
}

// itemNumbered returns the item with a number of an itemTable with these ids, "" for 0.
func itemNumbered(ids []string, n uint32) (string, error) {
	switch {
	case n == 0:
		return "", nil
	case int(n) > len(ids):
		return "", fmt.Errorf("it is about item %d of %d", n, len(ids))
	}
	return ids[n-1], nil
}

func briefsPage(briefs []briefRef) *agentv1.BriefsPage {
	n := len(briefs)
	p := &agentv1.BriefsPage{
		WalSeqSteps: make([]int64, n), Kinds: make([]agentv1.BriefKind, n),
		Items: make([]uint32, n),
	}
	var items itemTable
	last := uint64(0)
	for i, b := range briefs {
		p.WalSeqSteps[i], p.Kinds[i], p.Items[i] = int64(b.WalSeq-last), b.Kind, items.number(b.ItemID)
		last = b.WalSeq
	}
	p.ItemIds = items.ids
	return p
}

// briefsFrom returns the references to briefs that a page has, in its order. An inconsistent page is an error.
func briefsFrom(p *agentv1.BriefsPage) ([]briefRef, error) {
	n := len(p.GetWalSeqSteps())
	if len(p.GetKinds()) != n || len(p.GetItems()) != n {
		return nil, fmt.Errorf("there are %d briefs, kinds of %d, and items of %d", n, len(p.GetKinds()),
			len(p.GetItems()))
	}
	briefs, last := make([]briefRef, n), uint64(0)
	for i, step := range p.GetWalSeqSteps() {
		itemID, err := itemNumbered(p.GetItemIds(), p.GetItems()[i])
		if err != nil {
			return nil, fmt.Errorf("brief %d: %w", i, err)
		}
		last += uint64(step)
		briefs[i] = briefRef{last, p.GetKinds()[i], itemID}
	}
	return briefs, nil
}

// page returns the conversation as it is now. The page shares what the conversation only appends to.
func (c *Conversation) page() *agentv1.ConversationPage {
	n := len(c.places)
	p := &agentv1.ConversationPage{
		WalSeqSteps: make([]int64, n), Items: make([]uint32, n), ItemIds: c.items,
		Utterances: slab[agentv1.UtterancePage](len(c.utterances)),
		Summaries:  slab[agentv1.SummaryPage](len(c.summaries)),
	}
	last := uint64(0)
	for i, at := range c.places {
		p.WalSeqSteps[i], p.Items[i] = int64(at.at-last), uint32(at.item+1)
		last = at.at
	}
	for i, u := range c.utterances {
		into := p.GetUtterances()[i]
		into.Round, into.MessageId, into.Bytes, into.Before = int64(u.Round), u.MessageID, int64(u.Bytes),
			int64(u.before)
	}
	for i, s := range c.summaries {
		into := p.GetSummaries()[i]
		into.ItemId, into.Round, into.Through, into.TurnId = s.ItemID, int64(s.Round), stamp(s.Through), s.turnID
		into.Covered, into.Bytes, into.AgentBytes, into.ItemBytes = int64(s.covered), int64(s.bytes),
			int64(s.agentBytes), int64(s.itemBytes)
	}
	return p
}

// conversationFrom returns the conversation that a page has.
func conversationFrom(p *agentv1.ConversationPage) (Conversation, error) {
	var c Conversation
	n := len(p.GetWalSeqSteps())
	if len(p.GetItems()) != n || len(p.GetUtterances()) > n {
		return c, fmt.Errorf("the conversation has %d utterances, items of %d, and %d of which more is known", n,
			len(p.GetItems()), len(p.GetUtterances()))
	}
	last := uint64(0)
	for i, step := range p.GetWalSeqSteps() {
		itemID, err := itemNumbered(p.GetItemIds(), p.GetItems()[i])
		if err != nil {
			return c, fmt.Errorf("utterance %d: %w", i, err)
		}
		last += uint64(step)
		c.addPlace(last, itemID)
		if known := i - n + len(p.GetUtterances()); known >= 0 {
			u := p.GetUtterances()[known]
			next := Utterance{
				Round: int(u.GetRound()), MessageID: u.GetMessageId(), Bytes: int(u.GetBytes()),
				before: int(u.GetBefore()), ItemID: itemID,
			}
			if next.Round < 0 {
				next.At = last
			}
			c.utterances = append(c.utterances, next)
		}
	}
	for _, s := range p.GetSummaries() {
		c.summaries = append(c.summaries, Summary{
			ItemID: s.GetItemId(), Round: int(s.GetRound()), Through: timeOf(s.GetThrough()), turnID: s.GetTurnId(),
			covered: int(s.GetCovered()), bytes: int(s.GetBytes()), agentBytes: int(s.GetAgentBytes()),
			itemBytes: int(s.GetItemBytes()),
		})
	}
	return c, nil
}
