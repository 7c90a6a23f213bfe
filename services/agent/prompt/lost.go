package prompt

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
)

// MostLost is how many lost rounds are shown; a message has as many attempts.
const MostLost = 3

// lostChars keep what every text has of lost rounds within a small budget.
const lostChars = 80

// What came of a call that has no recorded result.
const (
	NotRun   = "did not run"
	NoEffect = "has no recorded result and changes nothing"
	Unknown  = "outcome unknown: look before you repeat it"
)

// Lost is a round whose runner was lost before it saw what came of its calls.
type Lost struct {
	TurnID string
	Index  int32
	Calls  []LostCall
}

// LostCall is one call of it.
type LostCall struct {
	Name      string
	Arguments *structpb.Struct
	// Outcome is success or error, as it was recorded or as its plane says, or one
	// of NotRun, NoEffect and Unknown.
	Outcome, Summary string
	// Asked: it was under way when the run was lost.
	Asked bool
}

const lostTitle = "Cut off: an earlier run was lost before it saw what came of these calls; none of them is repeated by itself"

// short is what every text says of a call.
func (c LostCall) short(of Lost) string {
	line := fmt.Sprintf("- %s/%d %s: %s", of.TurnID, of.Index, fold(c.Name, lostChars), c.Outcome)
	if c.Summary != "" {
		line += ", " + fold(c.Summary, lostChars)
	}
	return line + "\n"
}

// long adds what it was called with.
func (c LostCall) long(of Lost) string {
	if raw, err := pbjson.Append(nil, c.Arguments); err == nil && len(c.Arguments.GetFields()) > 0 {
		return c.short(of) + "  " + fold(string(raw), noteChars) + "\n"
	}
	return c.short(of)
}

// lostLeast is what every text has of lost rounds: what was under way in each.
func lostLeast(lost []Lost) string {
	if len(lost) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(heading(lostTitle, compact, 0))
	for _, l := range lost {
		recorded, unrun := 0, 0
		for _, c := range l.Calls {
			switch {
			case c.Asked:
				b.WriteString(c.short(l))
			case c.Outcome == NotRun:
				unrun++
			default:
				recorded++
			}
		}
		if recorded+unrun > 0 {
			fmt.Fprintf(&b, "  %d call(s) before it have results, %d after it did not run\n", recorded, unrun)
		}
	}
	return b.String()
}

// lostWithin lists all calls where that takes no more than room, else the least.
func lostWithin(lost []Lost, room int) []form {
	if len(lost) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString(heading(lostTitle, outcome(agentv1.SectionOutcome_SECTION_OUTCOME_FULL), 0))
	for _, l := range lost {
		for _, c := range l.Calls {
			b.WriteString(c.long(l))
		}
	}
	least := form{compact, lostLeast(lost)}
	if b.Len() > max(room, len(least.text)) {
		return []form{least}
	}
	return []form{{full, b.String()}, least}
}
