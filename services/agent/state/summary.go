package state

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

const (
	// MaxSummaryBytes bounds the text of a summary. It leaves half of the conversation in a
	// context to the newest words.
	MaxSummaryBytes = 2048
	// keptSummaries is how many summaries an agent keeps. The item whose summary is the oldest
	// loses it, and its turns show the words again.
	keptSummaries = 32
	// summaryOverhead is what the line before a summary takes, in bytes.
	summaryOverhead = 120
)

// Summary is a runner's summary of older conversation, in place of the words that it covers. Its
// text is in the journal.
type Summary struct {
	// ItemID is the work item that the runner's turn was bound to, "" for none. The summary
	// covers what was said about the agent and about the item.
	ItemID string
	// Round is the number of the round that has the text.
	Round int
	// Through is when the last turn that the summary covers ended.
	Through time.Time
	turnID  string // that turn, "" for none
	covered int    // how many utterances there were before the first one that it does not cover
	bytes   int    // what it takes in a context
	// agentBytes and itemBytes are what the utterances that it covers take, as far as the index
	// had any.
	agentBytes, itemBytes int
}

// covers reports whether a summary stands in place of the n-th utterance. A nil Summary covers
// none.
func (s *Summary) covers(n int, itemID string) bool {
	return s != nil && n < s.covered && (itemID == "" || itemID == s.ItemID)
}

// before returns what the covered utterances about an item take, 0 for a nil Summary.
func (s *Summary) before(itemID string) int {
	switch {
	case s == nil:
		return 0
	case itemID == "":
		return s.agentBytes
	case itemID == s.ItemID:
		return s.itemBytes
	}
	return 0
}

// SummaryOf returns the summary that the runner of the open turn submits with its next round. It
// returns INVALID_ARGUMENT if the turn that it names has not ended or is not among the newest, or
// if it covers less than the current one (SPEC C7.5).
func (a *Agent) SummaryOf(sum *agentv1.ConversationSummary) (Summary, error) {
	const field = "conversation_summary.through_turn_id"
	itemID := a.OpenTurn.Record.GetBoundWorkItemId()
	s := Summary{
		ItemID: itemID, Round: a.Transcript.Rounds(), Through: a.OpenTurn.Record.GetStartedAt().AsTime(),
		covered: a.OpenTurn.heardBefore,
		bytes:   len(sum.GetText()) + 2*(strings.Count(sum.GetText(), "\n")+1) + summaryOverhead,
	}
	current := a.Conversation.summaryAbout(itemID)
	switch id := sum.GetThroughTurnId(); {
	case id == "" && current != nil && current.covered > s.covered: // the turn is another attempt at an older message
		s.covered, s.turnID, s.Through = current.covered, current.turnID, current.Through
	case id == "":
		for t := range a.EndedTurns.Backward() {
			if t.heardInAll <= s.covered {
				s.turnID, s.Through = t.Record.GetTurnId(), t.Record.GetEndedAt().AsTime()
				break
			}
		}
	case id == a.OpenTurn.Record.GetTurnId():
		return s, fault.Invalid(field, id, "must be a turn that has ended: what is said in this one goes on")
	default:
		t := a.FindTurn(id)
		if t == nil {
			return s, fault.Invalid(field, id, fmt.Sprintf("must be one of the newest %d turns of agent %q", KeptTurns,
				a.Record.GetAgentId()))
		}
		s.turnID, s.Through, s.covered = id, t.Record.GetEndedAt().AsTime(), t.heardInAll
		if current != nil && s.covered < current.covered {
			return s, fault.Invalid(field, id, fmt.Sprintf("must be %s or a later turn, or empty: the current "+
				"summary covers what was said through that turn", current.turnID))
		}
	}
	s.agentBytes, s.itemBytes = a.Conversation.bytesBefore(s.covered, ""), a.Conversation.bytesBefore(s.covered, itemID)
	return s, nil
}

// replace adds a summary in place of the one for the same item. If there are keptSummaries for other
// items, it removes the oldest of them.
func (c *Conversation) replace(s Summary) {
	next := slices.DeleteFunc(slices.Clone(c.summaries), func(o Summary) bool { return o.ItemID == s.ItemID })
	if len(next) == keptSummaries {
		next = next[1:]
	}
	next = append(next, s)
	c.summaries = next
}

// summaryAbout returns the summary of turns on an item, nil if there is none.
func (c *Conversation) summaryAbout(itemID string) *Summary {
	i := slices.IndexFunc(c.summaries, func(s Summary) bool { return s.ItemID == itemID })
	if i < 0 {
		return nil
	}
	return &c.summaries[i]
}

// summaryFor returns the summary that a turn on an item ("" for none) shows: that of turns on the
// item or else that of turns on none, which covers only the utterances that are about no item. It
// returns nil if there is neither.
func (c *Conversation) summaryFor(itemID string) *Summary {
	if s := c.summaryAbout(itemID); s != nil {
		return s
	}
	return c.summaryAbout("")
}

// bytesBefore returns what the utterances about an item take that are numbered below n, as far as
// the index has any.
func (c *Conversation) bytesBefore(n int, itemID string) (bytes int) {
	for i, u := range c.utterances {
		switch {
		case u.ItemID != itemID:
		case c.first()+i < n:
			bytes = u.before + u.Bytes
		case bytes == 0:
			return u.before
		default:
			return bytes
		}
	}
	return bytes
}
