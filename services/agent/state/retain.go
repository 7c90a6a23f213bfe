package state

import (
	"slices"
	"time"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

var _ journal.Retaining = (*State)(nil)

const (
	// ShownRounds is how many rounds of an item a context shows.
	ShownRounds = 8
	// neededTurns is how many of an agent's newest turns need all their rounds, whatever their age: a context shows
	// what the last ones that failed tried.
	neededTurns = 16
	// neededBriefs is how many of an agent's newest briefs are needed, whatever their age.
	neededBriefs = 16
)

// Needs implements journal.Retaining. Needed are
//   - the events by which those who read from the beginning count agents;
//   - what later contexts show: messages that are not finished, the utterances in the index of the conversation,
//     current summaries, the rounds of the newest turns, and the newest rounds of each item that has no report yet;
//   - the newest briefs.
//
// What all other events say is in the records of the state, or nothing reads it any more.
func (s *State) Needs(ev *journal.Event, _ time.Time) bool {
	a := s.agents.Get(plane.Key{Namespace: ev.Namespace, ID: ev.AgentID})
	if a == nil {
		return false
	}
	row, err := eventRows.Of(ev)
	return err == nil && row.needed(a, ev)
}

// needsRound reports whether an event of a round is needed: if the round is of one of the newest neededTurns turns,
// or if the item has no report yet and the round is among the newest ShownRounds rounds for it.
func (a *Agent) needsRound(walSeq uint64, itemID string) bool {
	turns := a.Transcript.Turns
	if n := len(turns) - neededTurns; n <= 0 || walSeq > turns[n-1].EndedAt {
		return true
	}
	numbers := a.Transcript.ByItem[itemID]
	if len(numbers) == 0 ||
		slices.ContainsFunc(a.Briefs, func(b briefRef) bool {
			return b.Kind == agentv1.BriefKind_BRIEF_KIND_RESULT &&
				b.ItemID == itemID
		}) {
		return false // nobody works on a reported item any more
	}
	return walSeq >= a.Transcript.Round(numbers[max(0, len(numbers)-ShownRounds)])[0]
}

// summarizes reports whether the event at walSeq submitted a round with the text of a current summary.
func (a *Agent) summarizes(walSeq uint64) bool {
	for _, s := range a.Conversation.summaries {
		if a.Transcript.Round(s.Round)[0] == walSeq {
			return true
		}
	}
	return false
}

// indexes reports whether the index has the utterance of the event at walSeq. The index has at most keptUtterances,
// which are not in the order of the journal: a message may be heard long after it was queued.
func (c *Conversation) indexes(walSeq uint64) bool {
	for _, p := range c.places[c.first():] {
		if p.at == walSeq {
			return true
		}
	}
	return false
}
