package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	formTable = "table"
	formJSON  = "json"
)

// printer writes for eyes and keeps the first error.
type printer struct {
	w      io.Writer
	colour bool
	screen bool // a terminal, that can be wiped
	err    error
}

func newPrinter(w io.Writer) *printer {
	return &printer{w: w, colour: wantsColour(w), screen: isTerminal(w)}
}

// wantsColour is true for a terminal only, and never against NO_COLOR.
func wantsColour(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && isTerminal(w)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// columns is how wide a picture may be: the terminal, else $COLUMNS, else what
// most people have.
func (p *printer) columns() int {
	const usual, least = 100, 60
	if f, ok := p.w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return max(n, least)
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return max(n, least)
	}
	return usual
}

// wipe clears a screen; in a pipe pictures follow each other.
func (p *printer) wipe(first bool) {
	switch {
	case p.screen:
		p.printf("\x1b[H\x1b[2J\x1b[3J")
	case !first:
		p.printf("\n")
	}
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// json writes one document.
func (p *printer) json(m proto.Message) {
	var out bytes.Buffer
	b, err := protojson.Marshal(m)
	if err == nil {
		err = json.Indent(&out, b, "", "  ")
	}
	if err != nil {
		p.err = err
		return
	}
	p.printf("%s\n", out.String())
}

// jsonLine writes one document on one line.
func (p *printer) jsonLine(m proto.Message) {
	var out bytes.Buffer
	b, err := protojson.Marshal(m)
	if err == nil {
		err = json.Compact(&out, b)
	}
	if err != nil {
		p.err = err
		return
	}
	p.printf("%s\n", out.String())
}

const (
	bold   = "1"
	dim    = "2"
	green  = "32"
	yellow = "33"
	red    = "31"
	cyan   = "36"
	violet = "35"
)

func (p *printer) paint(colour, s string) string {
	if !p.colour || s == "" {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

// table writes rows in columns. The last column is not padded.
func (p *printer) table(empty string, header []string, rows [][]string) {
	if len(rows) == 0 {
		p.printf("%s\n", empty)
		return
	}
	widths := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], width(cell))
		}
	}
	line := func(row []string) string {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-width(cell)+2))
			}
		}
		return strings.TrimRight(b.String(), " ")
	}
	p.printf("%s\n", p.paint(bold, line(header)))
	for _, row := range rows {
		p.printf("%s\n", line(row))
	}
}

// fields writes names and values below each other and leaves empty ones out.
func (p *printer) fields(pairs ...string) {
	most := 0
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			most = max(most, width(pairs[i]))
		}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			indented := strings.ReplaceAll(strings.TrimRight(pairs[i+1], "\n"), "\n", "\n"+strings.Repeat(" ", most+2))
			p.printf("%s%s  %s\n", p.paint(bold, pairs[i]), strings.Repeat(" ", most-width(pairs[i])), indented)
		}
	}
}

// next tells that there is more than one page.
func (p *printer) next(token string) {
	if token != "" {
		p.printf("\nmore: --page-token %s\n", token)
	}
}

// width is how many columns a terminal gives to s.
func width(s string) int {
	n := 0
	for _, r := range s {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana), r >= 0xff01 && r <= 0xff60, r >= 0x1f300 && r <= 0x1faff:
			n += 2
		default:
			n++
		}
	}
	return n
}

// brief cuts s to one line of at most columns.
func brief(s string, columns int) string {
	s = printable(strings.Join(strings.Fields(s), " "))
	if width(s) <= columns {
		return s
	}
	n := 0
	for i, r := range s {
		if n += width(string(r)); n > columns-1 {
			return s[:i] + "…"
		}
	}
	return s
}

// fold breaks s at blanks into at most lines lines of at most columns; what does
// not fit ends with an ellipsis.
func fold(s string, columns, lines int) []string {
	var out []string
	rest := printable(strings.Join(strings.Fields(s), " "))
	for rest != "" {
		if len(out) == lines-1 || width(rest) <= columns {
			return append(out, brief(rest, columns))
		}
		at, blank, n := 0, 0, 0
		for i, r := range rest {
			if n += width(string(r)); n > columns {
				break
			}
			at = i + len(string(r))
			if r == ' ' {
				blank = i
			}
		}
		if blank > 0 && rest[at] != ' ' {
			at = blank
		}
		out = append(out, strings.TrimRight(rest[:at], " "))
		rest = strings.TrimLeft(rest[at:], " ")
	}
	return out
}

// printable keeps what comes from agents and outside systems from steering the
// terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) || unicode.In(r, unicode.Cf) && !bidi(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}

func bidi(r rune) bool { return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 }

// short is an enum value without the prefix of its type; "" if it is not set.
func short(e protoreflect.Enum) string {
	d := e.Descriptor()
	v := d.Values().ByNumber(e.Number())
	if v == nil {
		return fmt.Sprint(e.Number())
	}
	if e.Number() == 0 {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), enumPrefix(d)))
}

func enumPrefix(d protoreflect.EnumDescriptor) string {
	zero := string(d.Values().ByNumber(0).Name())
	return strings.TrimSuffix(zero, "UNSPECIFIED")
}

// when is a time for people, in their zone.
func when(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Local().Format(time.DateTime)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func mark(b bool) string {
	if b {
		return "*"
	}
	return ""
}

func number[T int | int32 | int64](n T) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
