package prompt

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/pbjson"
)

const (
	// MostLost is how many of the turns that did not complete are shown, the newest ones; a
	// message has as many attempts.
	MostLost = 3
	// requiredCalls is how many calls of earlier attempts each context lists, the newest
	// ones. It only has the number of the others.
	requiredCalls = 40
	// lostChars bounds each text in the required line about a call, in characters.
	lostChars = 80
)

// The outcomes of a call that has no recorded result.
const (
	NotRun   = "did not run"
	NoEffect = "has no recorded result and changes nothing"
	Unknown  = "outcome unknown: look before you repeat it"
)

// Attempt is a round of a turn that did not complete.
type Attempt struct {
	TurnID string
	Index  int32
	// Ended says how the turn ended, such as lease_lost.
	Ended string
	Calls []Tried
}

// Tried is one call of an Attempt.
type Tried struct {
	Name      string
	Arguments *structpb.Struct
	// Outcome is success or error, as recorded or as reported by the plane of the call, or
	// one of NotRun, NoEffect and Unknown.
	Outcome, Summary string
	// Result is the beginning of the recorded result as JSON, empty if there is none.
	Result string
	// Asked means that the call was being executed when the run was lost.
	Asked bool
}

const attemptsTitle = "What was tried: earlier turns ended before they were done; none of these calls is " +
	"repeated by itself"

// shortLine returns the line of a call that each context contains.
func (c Tried) shortLine(a Attempt) string {
	line := fmt.Sprintf("- %s/%d %s: %s", a.TurnID, a.Index, oneLine(c.Name, lostChars), c.Outcome)
	if c.Summary != "" {
		line += ", " + oneLine(c.Summary, lostChars)
	}
	return line + "\n"
}

// longLines returns the line of shortLine, and one line each for the arguments and the result, if there are any, of
// noteChars characters at most.
func (c Tried) longLines(a Attempt) string {
	out := c.shortLine(a)
	if raw, err := pbjson.Append(nil, c.Arguments); err == nil && len(c.Arguments.GetFields()) > 0 {
		out += "  arguments: " + oneLine(string(raw), noteChars) + "\n"
	}
	if c.Result != "" {
		out += "  result: " + oneLine(c.Result, noteChars) + "\n"
	}
	return out
}

// endingLines returns how the turns of attempts ended, oldest first.
func endingLines(attempts []Attempt) string {
	var b strings.Builder
	previousTurnID := ""
	for _, a := range attempts {
		if a.TurnID != previousTurnID && a.Ended != "" {
			fmt.Fprintf(&b, "Attempt %s ended: %s.\n", a.TurnID, oneLine(a.Ended, lostChars))
		}
		previousTurnID = a.TurnID
	}
	return b.String()
}

// attemptsLeast returns the required part about earlier attempts: one line for each of the
// newest calls that ran or may have run, and the numbers of the others.
func attemptsLeast(attempts []Attempt) string {
	if len(attempts) == 0 {
		return ""
	}

	// The calls that ran or may have run, and the number of those that did not.
	var lines []string
	unrun := 0
	for _, a := range attempts {
		for _, c := range a.Calls {
			if c.Outcome == NotRun && !c.Asked {
				unrun++
				continue
			}
			lines = append(lines, c.shortLine(a))
		}
	}

	var b strings.Builder
	b.WriteString(heading(attemptsTitle, compact, 0) + endingLines(attempts))
	leftOut := len(lines) - requiredCalls
	if leftOut > 0 {
		fmt.Fprintf(&b, "[%d earlier calls are left out; ListRounds has them]\n", leftOut)
		lines = lines[leftOut:]
	}
	b.WriteString(strings.Join(lines, ""))
	if unrun > 0 {
		fmt.Fprintf(&b, "  %d call(s) after them did not run\n", unrun)
	}
	return b.String()
}

// attemptForms returns the list of all calls and the required part, or only the required part if the
// list needs more than room bytes and is longer than that part.
func attemptForms(attempts []Attempt, room int) []form {
	if len(attempts) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString(heading(attemptsTitle, full, 0) + endingLines(attempts))
	for _, a := range attempts {
		for _, c := range a.Calls {
			b.WriteString(c.longLines(a))
		}
	}
	least := form{compact, attemptsLeast(attempts)}
	if b.Len() > max(room, len(least.text)) {
		return []form{least}
	}
	return []form{{full, b.String()}, least}
}
