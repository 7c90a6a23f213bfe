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
	type look struct {
		said   []prompt.Said
		at     []uint64   // wal_seqs of the messages that are read back, in the order of said
		rounds [][]uint64 // likewise, of the rounds
		kinds  []int      // for each of said: 0 if it was in memory, 1 for a message to read back, 2 for a round
		// summary is nil if there is none. unread means that its text is in the first of rounds.
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
				l.rounds = append(l.rounds, a.Transcript.Round(sum.Round)[:1])
			}
		}
		for _, u := range tail {
			var said prompt.Said
			kind := 0
			if u.Round < 0 {
				if m := a.Lane.Get(u.MessageID); m != nil {
					said = heardIn(m)
				} else {
					kind = 1
					l.at = append(l.at, u.At)
				}
			} else if r := a.RoundInMemory(u.Round); r != nil {
				said = saidIn(r)
			} else {
				kind = 2
				l.rounds = append(l.rounds, a.Transcript.Round(u.Round)[:1]) // the event with the text
			}
			l.said, l.kinds = append(l.said, said), append(l.kinds, kind)
		}
		return l, nil
	})
	if err != nil {
		return err
	}
	partition := s.engine.For(k.Namespace, k.ID)
	messages, err := journal.ReadBack(ctx, partition, l.at)
	if err != nil {
		return err
	}
	rounds, err := transcript.Read(ctx, partition, l.rounds)
	if err != nil {
		return err
	}
	if l.unread {
		if l.summary.Text = rounds[0].GetConversationSummary().GetText(); rounds[0] == nil {
			l.summary = nil
		}
		rounds = rounds[1:]
	}
	// What the index has is needed, so nothing of it is removed. If it is missing all the same, the context does
	// without it.
	for i, kind := range l.kinds {
		said := l.said[i]
		switch kind {
		case 1:
			queued, ok := messages[0].Payload.(*agentv1.MessageQueued)
			if !ok && !messages[0].Removed() {
				return fault.InternalError.Newf("wal_seq %d is no message", messages[0].WalSeq)
			}
			if messages = messages[1:]; !ok {
				continue
			}
			said = heardIn(queued.GetMessage())
		case 2:
			r := rounds[0]
			if rounds = rounds[1:]; r == nil {
				continue
			}
			said = saidIn(r)
		}
		p.conversation = append(p.conversation, said)
	}
	p.summary = l.summary
	if p.earlier == 0 && p.summary == nil {
		return nil // nothing is referred to that is not shown
	}
	if since := s.conversationSince(ctx, k); !since.IsZero() {
		p.since = stamp(since)
	}
	return nil
}

func saidIn(r *agentv1.Round) prompt.Said {
	return prompt.Said{Who: speakers[agentv1.Speaker_SPEAKER_AGENT], Ref: fmt.Sprintf("%s/%d", r.GetTurnId(),
		r.GetIndex()), At: stamp(r.GetCreatedAt().AsTime()), Text: r.GetText()}
}

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

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
