package output

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/terminal"
)

// Width returns how many columns a terminal uses for s.
func Width(s string) int {
	n := 0
	for _, r := range s {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana), r >= 0xff01 && r <= 0xff60,
			r >= 0x1f300 && r <= 0x1faff:
			n += 2
		default:
			n++
		}
	}
	return n
}

// Shorten returns s as one printable line of at most columns columns. An
// ellipsis replaces what does not fit.
func Shorten(s string, columns int) string {
	s = terminal.Printable(strings.Join(strings.Fields(s), " "))
	if Width(s) <= columns {
		return s
	}
	n := 0
	for i, r := range s {
		if n += Width(string(r)); n > columns-1 {
			return s[:i] + "…"
		}
	}
	return s
}

// flexible is the first byte of a cell whose column may be narrower than its text. Printable text never has it.
const flexible = "\x00"

// Flexible returns the cell of a table with a free text: its column gets the width that the others leave,
// and an ellipsis replaces what does not fit.
func Flexible(s string) string {
	return flexible + terminal.Printable(strings.Join(strings.Fields(s), " "))
}

// Wrap breaks s at blanks into at most maxLines printable lines of at most columns
// columns. An ellipsis replaces what does not fit.
func Wrap(s string, columns, maxLines int) []string {
	var out []string
	rest := terminal.Printable(strings.Join(strings.Fields(s), " "))
	for rest != "" {
		if len(out) == maxLines-1 || Width(rest) <= columns {
			return append(out, Shorten(rest, columns))
		}
		end, blank, n := 0, 0, 0
		for i, r := range rest {
			if n += Width(string(r)); n > columns {
				break
			}
			end = i + len(string(r))
			if r == ' ' {
				blank = i
			}
		}
		if blank > 0 && rest[end] != ' ' {
			end = blank
		}
		out = append(out, strings.TrimRight(rest[:end], " "))
		rest = strings.TrimLeft(rest[end:], " ")
	}
	return out
}

// Pad returns s with blanks up to a number of columns, and one more.
func Pad(s string, columns int) string {
	return s + strings.Repeat(" ", max(columns-Width(s), 0)+1)
}

// milliseconds is time.DateTime with milliseconds.
const milliseconds = "2006-01-02 15:04:05.000"

// Time formats t in the printer's time zone; nil is "". A time in UTC ends with Z.
func (p *Printer) Time(t *timestamppb.Timestamp) string { return p.format(t, time.DateTime) }

// Milliseconds is Time with milliseconds.
func (p *Printer) Milliseconds(t *timestamppb.Timestamp) string { return p.format(t, milliseconds) }

// Minute formats the time of day of t in hours and minutes, as Time does.
func (p *Printer) Minute(t *timestamppb.Timestamp) string { return p.format(t, "15:04") }

func (p *Printer) format(t *timestamppb.Timestamp, layout string) string {
	if t == nil {
		return ""
	}
	if p.utc {
		return t.AsTime().UTC().Format(layout) + "Z"
	}
	return t.AsTime().Local().Format(layout)
}

// Yes returns "yes", or "" for false.
func Yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

// Star returns "*", or "" for false.
func Star(b bool) string {
	if b {
		return "*"
	}
	return ""
}

// Number formats n; zero is "".
func Number[T int | int32 | int64](n T) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// Bytes formats a size in binary units, such as "1.5 MiB".
func Bytes(n uint64) string {
	const unit = 1 << 10
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, names := float64(n)/unit, []string{"KiB", "MiB", "GiB", "TiB"}
	for v >= unit && len(names) > 1 {
		v, names = v/unit, names[1:]
	}
	return fmt.Sprintf("%.1f %s", v, names[0])
}

// Detail returns ": text", to be appended to a word that text explains, or "".
func Detail(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// StateWithReason returns a state and its reason code, or the state alone where
// both are the same word.
func StateWithReason(state, reason string) string {
	if reason == state {
		return state
	}
	return state + Detail(reason)
}
