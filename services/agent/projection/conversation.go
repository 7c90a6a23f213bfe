package projection

import (
	"context"
	"fmt"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/prompt"
	"quartet/services/agent/state"
	"quartet/services/agent/transcript"
)

// addConversation adds the newest part of what operators and the agent said, as far as it
// concerns the turn's item, and the runner's summary of what was said before. The message of the
// turn itself is not part of it.
func (s *Service) addConversation(ctx context.Context, k plane.Key, p *Projection, messageID string) error {
	// Collect what is in memory, and the places of what is not.
	type source int
	const (
		inMemory source = iota
		messageToRead
		roundToRead
	)
	type look struct {
		said        []prompt.Said
		sources     []source   // of said
		messageSeqs []uint64   // wal_seqs of the messages that are read back, in the order of said
		roundSeqs   [][]uint64 // likewise, of the rounds
		// summary is nil if there is none. unread means that its text is in the first of roundSeqs.
		summary *prompt.Summary
		unread  bool
	}
	l, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (look, error) {
		var l look
		a := st.Lookup(k)
		if a == nil {
			return l, nil
		}
		var tail []state.Utterance
		var sum *state.Summary
		sum, tail, p.earlier = a.Conversation.Tail(p.item.GetWorkItemId(), prompt.ConversationBytes,
			a.Lane.QueuedAt(messageID))
		if sum != nil {
			l.summary = &prompt.Summary{Through: stamp(sum.Through)}
			if r := a.RoundInMemory(sum.Round); r != nil {
				l.summary.Text = r.GetConversationSummary().GetText()
			} else {
				l.unread = true
				l.roundSeqs = append(l.roundSeqs, a.Transcript.Round(sum.Round)[:1])
			}
		}
		for _, u := range tail {
			var said prompt.Said
			from := inMemory
			if u.Round < 0 {
				if m := a.Lane.Get(u.MessageID); m != nil {
					said = heardIn(m)
				} else {
					from = messageToRead
					l.messageSeqs = append(l.messageSeqs, u.At)
				}
			} else if r := a.RoundInMemory(u.Round); r != nil {
				said = saidIn(r)
			} else {
				from = roundToRead
				l.roundSeqs = append(l.roundSeqs, a.Transcript.Round(u.Round)[:1]) // the event with the text
			}
			l.said, l.sources = append(l.said, said), append(l.sources, from)
		}
		return l, nil
	})
	if err != nil {
		return err
	}

	// Read the rest back from the journal.
	partition := s.engine.For(k.Namespace, k.ID)
	messages, err := journal.ReadBack(ctx, partition, l.messageSeqs)
	if err != nil {
		return err
	}
	rounds, err := transcript.Read(ctx, partition, l.roundSeqs)
	if err != nil {
		return err
	}
	if l.unread {
		l.summary.Text = rounds[0].GetConversationSummary().GetText()
		if rounds[0] == nil {
			l.summary = nil
		}
		rounds = rounds[1:]
	}

	// What the index has is needed, so nothing of it is removed. If it is missing all the same, the context does
	// without it.
	for i, said := range l.said {
		switch l.sources[i] {
		case inMemory:
		case messageToRead:
			ev := messages[0]
			messages = messages[1:]
			queued, ok := ev.Payload.(*agentv1.MessageQueued)
			if !ok && !ev.Removed() {
				return fault.InternalError.Newf("wal_seq %d is no message", ev.WalSeq)
			}
			if !ok {
				continue
			}
			said = heardIn(queued.GetMessage())
		case roundToRead:
			r := rounds[0]
			rounds = rounds[1:]
			if r == nil {
				continue
			}
			said = saidIn(r)
		}
		p.conversation = append(p.conversation, said)
	}
	p.summary = l.summary

	// Say since when the words can be read back, if any are left out.
	if p.earlier == 0 && p.summary == nil {
		return nil // nothing is referred to that is not shown
	}
	if since := s.conversationSince(ctx, k); !since.IsZero() {
		p.since = stamp(since)
	}
	return nil
}

// saidIn returns what the agent said in a round.
func saidIn(r *agentv1.Round) prompt.Said {
	return prompt.Said{Who: speakers[agentv1.Speaker_SPEAKER_AGENT], Ref: fmt.Sprintf("%s/%d", r.GetTurnId(),
		r.GetIndex()), At: stamp(r.GetCreatedAt().AsTime()), Text: r.GetText()}
}

// heardIn returns what a message says.
func heardIn(m *agentv1.Message) prompt.Said {
	return prompt.Said{
		Who: speakers[speakerOf(m)], Ref: m.GetMessageId(), At: stamp(m.GetCreatedAt().AsTime()),
		Text: m.GetText(),
	}
}

// speakers are the names of speakers in a context.
var speakers = map[agentv1.Speaker]string{
	agentv1.Speaker_SPEAKER_OPERATOR:   "Operator",
	agentv1.Speaker_SPEAKER_AGENT:      "You",
	agentv1.Speaker_SPEAKER_SUPERVISOR: "Your supervisor",
	agentv1.Speaker_SPEAKER_CHANNEL:    "Channel (evidence)",
}

// stamp returns a time as a context shows it.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
