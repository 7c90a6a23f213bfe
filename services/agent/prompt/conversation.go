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

// lines returns an utterance as the context shows it: who said it, and at most the first maxBytes bytes
// of what was said, quoted.
func (s Said) lines(maxBytes int) string {
	head := fmt.Sprintf("%s, %s, %s:\n", s.Who, s.Ref, s.At)
	if len(s.Text) > maxBytes {
		return head + quoteWithin(s.Text, maxBytes) + fmt.Sprintf(
			"[cut: %d bytes in all; ReadConversation has the rest]\n",
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
	source := "ReadConversation has the words"
	if since != "" && s.Through < since { // both have the same form
		source = "the " + removedWords
	} else if since != "" {
		source += " since " + since + "; older " + removedWords
	}
	return fmt.Sprintf("Summary, by your runner, of what was said until %s (%s):\n", s.Through, source)
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
	summarized := in.Summary != nil
	if len(in.Conversation) == 0 && !summarized {
		return nil
	}

	// All that was said since the summary.
	whole := full
	if in.Earlier > 0 {
		whole = truncated
	} else if summarized {
		whole = compact
	}
	forms := []form{{whole, conversationText(in, in.Conversation, whole, summarized, in.Earlier > 0)}}

	// The newest half of it, or of that, beside the summary; where not even one utterance fits, without the summary.
	if f := newestForm(in, len(in.Conversation)/2, room, summarized); f != nil {
		return append(forms, *f)
	}
	if !summarized {
		return forms
	}
	if f := newestForm(in, len(in.Conversation), room, false); f != nil {
		return append(forms, *f)
	}

	// The beginning of the summary.
	head := heading(conversationTitle, truncated, 0) + in.Summary.head(in.Since)
	text := head + quoteWithin(in.Summary.Text, room-len(head))
	if len(text) <= room {
		forms = append(forms, form{truncated, text})
	}
	return forms
}

// conversationText renders the summary, if withSummary is set, and utterances. cut says that parts before these are
// left out.
func conversationText(in Input, said []Said, o outcome, withSummary, cut bool) string {
	var b strings.Builder
	b.WriteString(heading(conversationTitle, o, 0))
	if withSummary {
		b.WriteString(in.Summary.head(in.Since) + quote(in.Summary.Text))
	}
	switch {
	case cut && withSummary:
		b.WriteString("[parts after that are left out; " + hasRest(in.Since) + "]\n")
	case cut:
		b.WriteString("[earlier parts are left out; " + hasRest(in.Since) + "]\n")
	}
	for _, s := range said {
		b.WriteString(s.lines(state.MaxUtteranceBytes))
	}
	return b.String()
}

// newestForm returns the newest utterances: count of them, or half of that, and so on, until the text fits into room
// bytes. It returns nil if not even one fits.
func newestForm(in Input, count, room int, withSummary bool) *form {
	for ; count > 0; count /= 2 {
		newest := in.Conversation[len(in.Conversation)-count:]
		text := conversationText(in, newest, truncated, withSummary, true)
		if len(text) <= room {
			return &form{truncated, text}
		}
	}
	return nil
}
