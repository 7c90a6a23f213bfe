package top

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"quartet/services/cli/output"
)

// Sequences of the terminal: its second screen, so that what the user had on the first one comes back; the cursor;
// lines that are not wrapped; and updates that are shown as a whole by terminals that know them.
const (
	enter       = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
	leave       = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	beginUpdate = "\x1b[?2026h"
	endUpdate   = "\x1b[?2026l"
	plain       = "\x1b[0m"
	clearRest   = "\x1b[K"
)

// screen is a terminal that is drawn as a whole. Only lines that changed are written, so that nothing flickers.
type screen struct {
	out     io.Writer
	size    func() (columns, rows int)
	restore func() error
	shown   []string
	columns int
	rows    int
}

// openScreen switches the terminal to its second screen and to raw input. The caller must close the screen that it
// returns. If it returns an error, it has undone the change of the input.
func openScreen(in, out *os.File) (*screen, error) {
	saved, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("the terminal: %w", err)
	}
	s := &screen{
		out:     out,
		restore: func() error { return term.Restore(int(in.Fd()), saved) },
		size: func() (int, int) {
			columns, rows, err := term.GetSize(int(out.Fd()))
			if err != nil || columns <= 0 || rows <= 0 {
				return 80, 24
			}
			return columns, rows
		},
	}
	if _, err := io.WriteString(out, enter); err != nil {
		return nil, errors.Join(err, s.restore())
	}
	return s, nil
}

// close gives the terminal back as it was.
func (s *screen) close() error {
	_, err := io.WriteString(s.out, leave)
	return errors.Join(err, s.restore())
}

// draw shows lines from the top of the screen. Lines that do not fit are cut, and what is below the last one is
// cleared.
func (s *screen) draw(lines func(columns, rows int) []string) error {
	columns, rows := s.size()
	if columns != s.columns || rows != s.rows {
		s.shown, s.columns, s.rows = nil, columns, rows
	}
	next := lines(columns, rows)
	next = slices.Clone(next[:min(len(next), rows)])
	for i := range next {
		next[i] = cut(next[i], columns)
	}
	for len(next) < rows {
		next = append(next, "")
	}
	var b bytes.Buffer
	if s.shown == nil {
		b.WriteString("\x1b[2J")
		s.shown = make([]string, rows)
	}
	for i, line := range next {
		if line != s.shown[i] {
			fmt.Fprintf(&b, "\x1b[%d;1H%s%s%s", i+1, line, plain, clearRest)
		}
	}
	s.shown = next
	if b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(s.out, beginUpdate+b.String()+endUpdate)
	return err
}

// cut returns the beginning of a line that fits into columns. Colours take no column.
func cut(line string, columns int) string {
	used := 0
	for i := 0; i < len(line); {
		if line[i] == '\x1b' {
			if end := strings.IndexByte(line[i:], 'm'); end >= 0 {
				i += end + 1
				continue
			}
		}
		r, n := utf8.DecodeRuneInString(line[i:])
		if used += output.Width(string(r)); used > columns {
			return line[:i]
		}
		i += n
	}
	return line
}
