package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
)

// Printer writes text to a terminal, a pipe or a file. It keeps the first error
// of a write and writes nothing after it, so callers check Err once at the end.
type Printer struct {
	w      io.Writer
	colour bool
	screen bool // w is a terminal, which can be cleared
	fixed  int  // the width of the output, if above 0
	utc    bool // times are written in UTC instead of the local zone
	err    error
}

// New returns a printer that writes to w, with colours where w is a terminal
// that shows them.
func New(w io.Writer) *Printer {
	return &Printer{w: w, colour: terminal.WantsColour(w), screen: terminal.IsTerminal(w)}
}

// NewColoured returns a printer that writes colours to any writer.
func NewColoured(w io.Writer) *Printer {
	return &Printer{w: w, colour: true}
}

// InUTC makes p write times in UTC instead of the local time zone, and returns p.
func (p *Printer) InUTC(utc bool) *Printer {
	p.utc = utc
	return p
}

// WithColumns fixes how wide the output may be, and returns p.
func (p *Printer) WithColumns(columns int) *Printer {
	p.fixed = columns
	return p
}

// Err returns the first error of a write.
func (p *Printer) Err() error { return p.err }

// Columns returns how wide output may be: what WithColumns was given, else the width
// of the terminal or $COLUMNS, of both at least 60, else 100.
func (p *Printer) Columns() int {
	const usual = 100
	if n, ok := p.width(); ok {
		return n
	}
	return usual
}

// width returns the fixed width, else that of the terminal, else $COLUMNS; the last two count as at least 60. ok is
// false if none of them is known, as for a pipe.
func (p *Printer) width() (columns int, ok bool) {
	const least = 60
	if p.fixed > 0 {
		return p.fixed, true
	}
	if f, ok := p.w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return max(n, least), true
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return max(n, least), true
	}
	return 0, false
}

// Clear prepares for drawing a picture again. It clears a terminal; elsewhere it
// separates the pictures by an empty line, except before the first one.
func (p *Printer) Clear(first bool) {
	switch {
	case p.screen:
		p.Printf("\x1b[H\x1b[2J\x1b[3J")
	case !first:
		p.Printf("\n")
	}
}

// Printf writes formatted text.
func (p *Printer) Printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// JSON writes m as one indented document.
func (p *Printer) JSON(m proto.Message) {
	p.protoJSON(m, func(out *bytes.Buffer, b []byte) error { return json.Indent(out, b, "", "  ") })
}

// JSONLine writes m as one document on one line.
func (p *Printer) JSONLine(m proto.Message) { p.protoJSON(m, json.Compact) }

// protoJSON writes m in the layout given. The layout of protojson itself varies
// between builds on purpose.
func (p *Printer) protoJSON(m proto.Message, layout func(out *bytes.Buffer, b []byte) error) {
	var out bytes.Buffer
	b, err := protojson.Marshal(m)
	if err == nil {
		err = layout(&out, b)
	}
	if err != nil {
		p.err = err
		return
	}
	p.Printf("%s\n", out.String())
}

// Paint returns s in a colour, or s alone where the output has no colours.
func (p *Printer) Paint(colour, s string) string {
	if !p.colour {
		return s
	}
	return terminal.Paint(colour, s)
}

// Table writes rows in columns below a header. The last column is not padded.
// Columns with cells of Flexible share the width that the others leave.
// It writes the text empty where there are no rows.
func (p *Printer) Table(empty string, header []string, rows [][]string) {
	if len(rows) == 0 {
		p.Printf("%s\n", empty)
		return
	}
	widths, free := make([]int, len(header)), make([]bool, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			text, ok := strings.CutPrefix(cell, flexible)
			widths[i], free[i] = max(widths[i], Width(text)), free[i] || ok
		}
	}
	p.fit(widths, free)
	line := func(row []string) string {
		var b strings.Builder
		for i, cell := range row {
			if text, ok := strings.CutPrefix(cell, flexible); ok {
				cell = Shorten(text, widths[i])
			}
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", max(widths[i]-Width(cell), 0)+gap))
			}
		}
		return strings.TrimRight(b.String(), " ")
	}
	p.Printf("%s\n", p.Paint(terminal.Bold, line(header)))
	for _, row := range rows {
		p.Printf("%s\n", line(row))
	}
}

const (
	gap = 2 // between two columns
	// leastFree is the width below which no column of free text is cut, and usualFree its width where that of
	// the output is unknown.
	leastFree, usualFree = 20, 60
)

// fit narrows the columns that are free so that all columns fit into the width of the output, as far as that
// is possible: the widest are cut first.
func (p *Printer) fit(widths []int, free []bool) {
	room, known := p.width()
	left := 0 // free columns without a width yet
	for i, w := range widths {
		room -= gap
		if free[i] {
			left++
		} else {
			room -= w
		}
	}
	room += gap // there is none after the last column
	if !known {
		for i := range widths {
			if free[i] {
				widths[i] = min(widths[i], usualFree)
			}
		}
		return
	}
	// The narrowest first: what it does not need is for the others.
	for done := make([]bool, len(widths)); left > 0; left-- {
		next := -1
		for i := range widths {
			if free[i] && !done[i] && (next < 0 || widths[i] < widths[next]) {
				next = i
			}
		}
		widths[next] = min(widths[next], max(room/left, leastFree))
		room -= widths[next]
		done[next] = true
	}
}

// Fields writes pairs of a name and a value, one pair a line, and omits the
// pairs whose value is empty. Further lines of a value are indented below it.
func (p *Printer) Fields(pairs ...string) {
	widest := 0
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			widest = max(widest, Width(pairs[i]))
		}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			indented := strings.ReplaceAll(strings.TrimRight(pairs[i+1], "\n"), "\n",
				"\n"+strings.Repeat(" ", widest+2))
			p.Printf("%s%s  %s\n", p.Paint(terminal.Bold, pairs[i]), strings.Repeat(" ", widest-Width(pairs[i])),
				indented)
		}
	}
}

// Block writes text with an indent before each line: all its lines if full is
// set, otherwise wrapped into at most maxLines lines.
func (p *Printer) Block(indent, text string, full bool, maxLines int) {
	text = strings.TrimRight(terminal.Printable(text), "\n")
	if text == "" {
		return
	}
	out := strings.Split(text, "\n")
	if !full {
		out = Wrap(text, p.Columns()-len(indent), maxLines)
	}
	for _, l := range out {
		p.Printf("%s\n", strings.TrimRight(indent+l, " "))
	}
}

// Warnings writes the warnings of a response to stderr, because they are not part of the
// result, with the commands for the methods that they name.
func Warnings[Kind protoreflect.Enum, W interface {
	GetKind() Kind
	GetMessage() string
}](cmd *cobra.Command, warnings []W) {
	for _, w := range warnings {
		cmd.PrintErrf("warning: %s: %s\n", pbjson.EnumText(w.GetKind()), terminal.Printable(w.GetMessage()))
		for _, line := range RemedyCommands(w.GetMessage(), RemedyValuesOf(cmd, nil)) {
			cmd.PrintErrf("  fix: %s\n", line)
		}
	}
}

// Note writes a remark about what is above it, after an empty line. It writes nothing for an empty text.
func (p *Printer) Note(text string) {
	if text != "" {
		p.Printf("\n%s\n", p.Paint(terminal.Dim, text))
	}
}

// NextPage writes how to get the next page of a list, if there is one.
func (p *Printer) NextPage(token string) {
	if token != "" {
		p.Printf("\nmore: --page-token %s\n", token)
	}
}
