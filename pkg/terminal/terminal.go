// Package terminal prepares output for terminals: colours where they are wanted, and text from
// untrusted sources without characters that control a terminal.
package terminal

import (
	"fmt"
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

// Count returns a number with its noun, such as "1 agent" or "2 agents". one and many are the noun's singular and
// plural.
func Count[N ~int | ~int32 | ~int64 | ~uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(int64(n)) + " " + many
}

// Paint returns s in a colour, which is one of the constants above, such as Red. It returns an empty s unchanged.
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

// Printable returns s with U+FFFD in place of each character that controls a terminal,
// such as a carriage return, that embeds, isolates or overrides a direction of text,
// that separates lines or paragraphs (U+2028, U+2029), or that Unicode does not define
// or reserves for private use. Newlines and tabs stay, and so do the blanks of all scripts,
// such as U+00A0, U+202F and U+3000, and the joiners of emoji. It is for text that agents,
// models and outside systems wrote, which is not trusted.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) || unicode.In(r, unicode.Cf) && !reordersText(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}

// reordersText reports whether r is a bidirectional embedding, override or isolate,
// or the end of one.
func reordersText(r rune) bool { return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 }
