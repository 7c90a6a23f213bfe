package state

import (
	"iter"
	"slices"
	"strings"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

const (
	// keptUtterances is how many utterances an agent keeps in its index. A context shows
	// fewer: older ones do not fit.
	keptUtterances = 256
	// MaxUtteranceBytes is how much of an utterance's text a context shows.
	MaxUtteranceBytes = 1600
	// utteranceOverhead is what the line with its speaker takes, in bytes.
	utteranceOverhead = 80
)

// Utterance is something that was said: a message of an operator or of the agent's
// supervisor, or the text of a round. Its text is in the journal.
type Utterance struct {
	Round int    // the number of the round; -1: it is a message
	At    uint64 // wal_seq of the event that queued the message; 0 for a round
	// MessageID finds the message in memory, as long as its lane keeps it; "" for a round.
	MessageID string
	Bytes     int // what it takes in a context; at most MaxUtteranceBytes and its overhead
	// before is what all earlier utterances about the same item take, or 0 if the index had none of
	// them when this one was added.
	before int
	// ItemID is the work item that it is about, "" if it is about the agent: what an
	// operator says without naming an item concerns every turn.
	ItemID string
}

// Conversation is the index of what operators and an agent said to each other, oldest
// first. The zero value is an empty conversation. Like all of the state it is not safe for use
// while an event is folded.
type Conversation struct {
	utterances []Utterance
	// places are the positions of all utterances, also of those that have left the index, so that
	// they can be read back: 16 bytes each.
	places []place
	items  []string // the ids that places refer to
	itemOf map[string]int32
	// summaries are the current ones, the newest last: at most keptSummaries, and one for each
	// item.
	summaries []Summary
}

// len returns how many utterances there are. They are numbered from 0.
func (c *Conversation) len() int { return len(c.places) }

// first returns the number of the first of utterances.
func (c *Conversation) first() int { return len(c.places) - len(c.utterances) }

// Unindexed returns, oldest first, the wal_seqs of the utterances that have left the index and that of the oldest one
// in it.
func (c *Conversation) Unindexed() []uint64 {
	var out []uint64
	for _, p := range c.places[:min(c.first()+1, len(c.places))] {
		out = append(out, p.at)
	}
	return out
}

// place is where the text of an utterance is in the journal, and what it is about.
type place struct {
	at   uint64 // wal_seq of the event that queued the message or submitted the round
	item int32  // index into items; -1 if it is about the agent
}

// Places returns the numbers and places of the utterances about an item, or of all utterances if
// itemID is "", newest first. Utterances are numbered from 0 in order of time.
func (c *Conversation) Places(itemID string) iter.Seq2[int, Place] {
	return func(yield func(int, Place) bool) {
		for n := len(c.places) - 1; n >= 0; n-- {
			p := Place{At: c.places[n].at}
			if i := c.places[n].item; i >= 0 {
				p.ItemID = c.items[i]
			}
			if itemID != "" && p.ItemID != itemID {
				continue
			}
			if !yield(n, p) {
				return
			}
		}
	}
}

// Place is where the text of an utterance is in the journal, and the item that it is about, ""
// if it is about the agent.
type Place struct {
	At     uint64
	ItemID string
}

func (c *Conversation) addPlace(at uint64, itemID string) {
	item := int32(-1)
	if itemID != "" {
		i, known := c.itemOf[itemID]
		if !known {
			if c.itemOf == nil {
				c.itemOf = map[string]int32{}
			}
			i = int32(len(c.items))
			c.items, c.itemOf[itemID] = append(c.items, itemID), i
		}
		item = i
	}
	c.places = append(c.places, place{at, item})
}

// IsConversation reports whether a message is part of the conversation: people, or the
// agent's supervisor, say something in it.
func IsConversation(m *agentv1.Message) bool {
	switch m.GetKind() {
	case agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, agentv1.MessageKind_MESSAGE_KIND_DELEGATION,
		agentv1.MessageKind_MESSAGE_KIND_CHANNEL_EVENT:
		return true
	case agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP:
		return m.GetOrigin() == agentv1.Origin_ORIGIN_PARENT
	default:
		return false
	}
}

// subjectOf returns the item that a message of a turn is about: the one that it names or
// whose wait it reached, and not the one that merely was current.
func subjectOf(m *agentv1.Message, t *agentv1.Turn) string {
	if m.GetMessageId() != t.GetMessageId() {
		return m.GetWorkItemId() // it was interjected
	}
	switch t.GetBinding() {
	case agentv1.Binding_BINDING_MESSAGE, agentv1.Binding_BINDING_WAIT:
		return t.GetBoundWorkItemId()
	case agentv1.Binding_BINDING_CURRENT, agentv1.Binding_BINDING_UNSPECIFIED:
	}
	return ""
}

// hear adds a message that a turn took, unless an earlier turn had taken it already. It returns
// how many utterances precede the message; for a message that is no part of the conversation, how
// many there are.
func (c *Conversation) hear(m *agentv1.Message, at uint64, t *agentv1.Turn) (before int) {
	if !IsConversation(m) || at == 0 {
		return c.len()
	}
	if i := slices.IndexFunc(c.utterances, func(u Utterance) bool { return u.Round < 0 && u.At == at }); i >= 0 {
		return c.first() + i
	}
	c.addPlace(at, subjectOf(m, t))
	c.add(Utterance{Round: -1, At: at, MessageID: m.GetMessageId(), Bytes: size(m.GetText()), ItemID: subjectOf(m, t)})
	return c.len() - 1
}

// say adds the text of a round, if it has any. number is the number of the round, and at the
// wal_seq of the event that submitted it. In a turn about a message m of the conversation the text
// is about the subject of m, otherwise about the item that the round is bound to.
func (c *Conversation) say(r *agentv1.Round, number int, at uint64, m *agentv1.Message, t *agentv1.Turn) {
	if strings.TrimSpace(r.GetText()) == "" {
		return
	}
	itemID := r.GetWorkItemId()
	if IsConversation(m) {
		itemID = subjectOf(m, t)
	}
	c.addPlace(at, itemID)
	c.add(Utterance{Round: number, Bytes: size(r.GetText()), ItemID: itemID})
}

func size(text string) int { return min(len(text), MaxUtteranceBytes) + utteranceOverhead }

func (c *Conversation) add(u Utterance) {
	for i := len(c.utterances) - 1; i >= 0; i-- {
		if last := c.utterances[i]; last.ItemID == u.ItemID {
			u.before = last.before + last.Bytes
			break
		}
	}
	if len(c.utterances) == keptUtterances {
		c.utterances = c.utterances[1:]
	}
	c.utterances = append(c.utterances, u)
}

// Tail returns the newest utterances that concern a turn about an item ("" for none), oldest
// first: those about the agent and those about the item, without the message at wal_seq except and
// without those that the summary s covers. s is nil if there is no summary. Together with the
// summary they take at most limit bytes, or a quarter of limit if the summary leaves less. left is
// the number of bytes before them that are left out.
//
// The beginning moves in steps of a quarter of limit, so that the text of consecutive turns
// begins the same way and a provider's prompt cache holds.
func (c *Conversation) Tail(itemID string, limit int, except uint64) (s *Summary, tail []Utterance, left int) {
	concerns := func(id string) bool { return id == "" || id == itemID }
	if s = c.summaryFor(itemID); s != nil {
		limit = max(limit-s.bytes, limit/4)
	}
	total, seen := 0, map[string]bool{}
	for i, u := range c.utterances {
		if !concerns(u.ItemID) || s.covers(c.first()+i, u.ItemID) {
			continue
		}
		if !seen[u.ItemID] { // what is no longer in the index
			seen[u.ItemID] = true
			left += max(u.before-s.before(u.ItemID), 0)
		}
		if u.Round < 0 && u.At == except {
			continue
		}
		total += u.Bytes
		tail = append(tail, u)
	}
	total += left
	if total <= limit {
		return s, tail, left
	}
	step := max(limit/4, 1)
	begin := (total - limit + step - 1) / step * step
	for len(tail) > 0 && left < begin {
		left += tail[0].Bytes
		tail = tail[1:]
	}
	return s, tail, left
}
