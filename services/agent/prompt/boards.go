package prompt

import "strings"

// Boards is the board plane's summary of an orchestrator's boards, whose sections and lines
// are in the order of their importance (S2-464 to S2-473).
type Boards struct {
	Text      string // headings of the second level and lines of lists; empty: none is active
	Truncated bool   // by the board plane already, within its own budget
	Unknown   bool   // it could not be asked
}

// cutBoards is the note that the summary was cut, and how to get the rest.
const cutBoards = "[cut: board_list and board_get show all of it]\n"

// forms returns the summary whole; as its first lines, up to the last list entry that fits
// into room together with cutBoards; and as cutBoards alone. Without a text it returns none.
func (b Boards) forms(room int) []form {
	if b.Text == "" {
		return nil // no boards: no section. Unknown: Render adds the section as omitted.
	}
	whole := full
	if b.Truncated {
		whole = truncated
	}
	text := "\n" + strings.ReplaceAll(b.Text, "\n## ", "\n\n## ")
	forms := []form{{whole, text}}

	// Cut it after the last entry of a list that fits, so that no heading stands without one.
	lineEnd, lastEntryEnd := 0, 0
	for line := range strings.Lines(text) {
		lineEnd += len(line)
		if lineEnd+len(cutBoards) > room {
			break
		}
		if strings.HasPrefix(line, "- ") {
			lastEntryEnd = lineEnd
		}
	}
	if lastEntryEnd > 0 {
		forms = append(forms, form{truncated, text[:lastEntryEnd] + cutBoards})
	}
	return append(forms, form{truncated, heading("Boards", truncated, 0) + cutBoards})
}
