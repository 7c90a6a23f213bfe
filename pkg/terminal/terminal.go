// Package terminal writes for terminals: colours where they are wanted, and text of
// others without what controls a terminal.
package terminal

import (
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// The colours and weights that Paint takes, as parameters of the SGR sequence.
const (
	Bold   = "1"
	Dim    = "2"
	Green  = "32"
	Yellow = "33"
	Red    = "31"
	Cyan   = "36"
	Violet = "35"
)

// Paint returns s in a colour. It returns an empty s unchanged.
func Paint(colour, s string) string {
	if s == "" {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

// WantsColour reports whether output to w should have colours: w is a terminal
// and the user did not set NO_COLOR.
func WantsColour(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && IsTerminal(w)
}

// IsTerminal reports whether w is a terminal that understands escape sequences.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// Printable replaces the characters of s that control a terminal or reorder
// text by U+FFFD, except newlines and tabs. Agents, models and outside systems
// wrote s, so it is not trusted.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) || unicode.In(r, unicode.Cf) && !reordersText(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}

// reordersText reports whether r is a bidirectional override or isolate.
func reordersText(r rune) bool { return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 }
