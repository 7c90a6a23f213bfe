package prompt

import (
	"fmt"
	"strings"

	"quartet/services/agent/state"
)

// Said is one utterance of the conversation.
type Said struct {
	Who  string // such as "Operator" or "You"
	Ref  string // the message, or the turn and round
	At   string // when, for a model
	Text string
}

// lines returns an utterance as the context shows it: who said it, and the words in quotes.
func (s Said) lines(most int) string {
	head := fmt.Sprintf("%s, %s, %s:\n", s.Who, s.Ref, s.At)
	if len(s.Text) > most {
		return head + within(s.Text, most) + fmt.Sprintf("[cut: %d bytes in all; ReadConversation has the rest]\n", len(s.Text))
	}
	return head + quote(s.Text)
}

const conversationTitle = "Conversation"

// conversationForms returns the conversation, whole and as its newest half. Where older parts
// are left out it says so, in the same words for turns that begin at the same place.
func conversationForms(in Input, room int) []form {
	if len(in.Conversation) == 0 {
		return nil
	}
	render := func(said []Said, o outcome, left int) string {
		var b strings.Builder
		b.WriteString(heading(conversationTitle, o, 0))
		if left > 0 {
			b.WriteString("[earlier parts are left out; ReadConversation has all of it]\n")
		}
		for _, s := range said {
			b.WriteString(s.lines(state.MaxUtteranceBytes))
		}
		return b.String()
	}
	whole := full
	if in.Earlier > 0 {
		whole = truncated
	}
	forms := []form{{whole, render(in.Conversation, whole, in.Earlier)}}
	for n := len(in.Conversation) / 2; n > 0; n /= 2 {
		if text := render(in.Conversation[len(in.Conversation)-n:], truncated, 1); len(text) <= room {
			return append(forms, form{truncated, text})
		}
	}
	return forms
}
