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
	At   string // when, in RFC 3339
	Text string
}

// lines returns an utterance as the context shows it: who said it, and at most the first most bytes
// of what was said, quoted.
func (s Said) lines(most int) string {
	head := fmt.Sprintf("%s, %s, %s:\n", s.Who, s.Ref, s.At)
	if len(s.Text) > most {
		return head + within(s.Text, most) + fmt.Sprintf("[cut: %d bytes in all; ReadConversation has the rest]\n",
			len(s.Text))
	}
	return head + quote(s.Text)
}

// Summary is a runner's summary of older conversation.
type Summary struct {
	Text    string
	Through string // when the last turn that the summary covers ended, in the form of Input.Since
}

// head returns the line before the summary. since is Input.Since.
func (s Summary) head(since string) string {
	words := "ReadConversation has the words"
	switch {
	case since == "":
	case s.Through < since: // both have the same form
		words = "the " + removedWords
	default:
		words += " since " + since + "; older " + removedWords
	}
	return fmt.Sprintf("Summary, by your runner, of what was said until %s (%s):\n", s.Through, words)
}

const removedWords = "words were removed because of their age"

// hasRest says where what is left out of the conversation can be read. since is Input.Since.
func hasRest(since string) string {
	if since == "" {
		return "ReadConversation has all of it"
	}
	return "ReadConversation has what was said since " + since + "; what was said before was removed because of its age"
}

const conversationTitle = "Conversation"

// conversationForms returns the conversation: the summary of older parts, if there is one, and
// what was said since, whole and as its newest half; where there is no room for both, without the
// summary, and at last the beginning of the summary alone. Where parts are left out it says
// so, in the same words for turns that begin at the same place.
func conversationForms(in Input, room int) []form {
	if len(in.Conversation) == 0 && in.Summary == nil {
		return nil
	}
	render := func(said []Said, o outcome, summary, cut bool) string {
		var b strings.Builder
		b.WriteString(heading(conversationTitle, o, 0))
		if summary {
			b.WriteString(in.Summary.head(in.Since) + quote(in.Summary.Text))
		}
		switch {
		case cut && summary:
			b.WriteString("[parts after that are left out; " + hasRest(in.Since) + "]\n")
		case cut:
			b.WriteString("[earlier parts are left out; " + hasRest(in.Since) + "]\n")
		}
		for _, s := range said {
			b.WriteString(s.lines(state.MaxUtteranceBytes))
		}
		return b.String()
	}
	has, whole := in.Summary != nil, full
	switch {
	case in.Earlier > 0:
		whole = truncated
	case has:
		whole = compact
	}
	forms := []form{{whole, render(in.Conversation, whole, has, in.Earlier > 0)}}
	newest := func(n int, summary bool) *form {
		for ; n > 0; n /= 2 {
			if text := render(in.Conversation[len(in.Conversation)-n:], truncated, summary, true); len(text) <= room {
				return &form{truncated, text}
			}
		}
		return nil
	}
	if f := newest(len(in.Conversation)/2, has); f != nil {
		return append(forms, *f)
	}
	if has {
		if f := newest(len(in.Conversation), false); f != nil {
			return append(forms, *f)
		}
		head := heading(conversationTitle, truncated, 0) + in.Summary.head(in.Since)
		if text := head + within(in.Summary.Text, room-len(head)); len(text) <= room {
			forms = append(forms, form{truncated, text})
		}
	}
	return forms
}
