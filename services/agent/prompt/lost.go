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

// lostChars bounds the required part about lost rounds, in characters for each call.
const lostChars = 80

// The outcomes of a call that has no recorded result.
const (
	NotRun   = "did not run"
	NoEffect = "has no recorded result and changes nothing"
	Unknown  = "outcome unknown: look before you repeat it"
)

// Lost is a round whose runner was lost before it received the results of its calls.
type Lost struct {
	TurnID string
	Index  int32
	Calls  []LostCall
}

// LostCall is one call of a Lost round.
type LostCall struct {
	Name      string
	Arguments *structpb.Struct
	// Outcome is success or error, as recorded or as reported by the plane of the call, or
	// one of NotRun, NoEffect and Unknown.
	Outcome, Summary string
	// Asked means that the call was being executed when the run was lost.
	Asked bool
}

const lostTitle = "Cut off: an earlier run was lost before it saw what came of these calls; none of them is repeated by itself"

// short returns the line of a call that each context contains.
func (c LostCall) short(of Lost) string {
	line := fmt.Sprintf("- %s/%d %s: %s", of.TurnID, of.Index, fold(c.Name, lostChars), c.Outcome)
	if c.Summary != "" {
		line += ", " + fold(c.Summary, lostChars)
	}
	return line + "\n"
}

// long returns the line of a call with its arguments.
func (c LostCall) long(of Lost) string {
	if raw, err := pbjson.Append(nil, c.Arguments); err == nil && len(c.Arguments.GetFields()) > 0 {
		return c.short(of) + "  " + fold(string(raw), noteChars) + "\n"
	}
	return c.short(of)
}

// lostLeast returns the required part about lost rounds: the call that was being executed in
// each.
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

// lostWithin returns the list of all calls, if it fits into room, and the required part.
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
