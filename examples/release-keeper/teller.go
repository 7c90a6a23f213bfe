package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// teller prints what happens: when, who did it, and why. It uses colours on a terminal, and plain text otherwise.
type teller struct {
	mu     sync.Mutex
	w      io.Writer
	colour bool
	began  time.Time
	width  int
}

func newTeller(f *os.File) *teller {
	t := &teller{w: f, began: time.Now(), width: 110}
	t.colour = term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == ""
	if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 40 {
		t.width = w
	}
	return t
}

// colours has the colour of each speaker.
var colours = map[string]string{
	"server": "35", "operator": "36", "agent": "32", "scheduler": "33", "task": "34", "outside": "36",
	"report": "1;32", "KILL": "1;31", "check": "1;35", "output": "2",
}

func (t *teller) paint(code, s string) string {
	if !t.colour || code == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (t *teller) title(head, sub string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := strings.Repeat("─", min(t.width, 72))
	_, _ = fmt.Fprintf(t.w, "%s\n%s  %s\n%s\n", line, t.paint("1", head), sub, line)
}

func (t *teller) say(who, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	first, rest, _ := strings.Cut(text, "\n")
	at := fmt.Sprintf("%6.2fs", time.Since(t.began).Seconds())
	_, _ = fmt.Fprintf(t.w, "%s  %s  %s\n", t.paint("2", at), t.paint(colours[who], fmt.Sprintf("%-9s", who)), first)
	for _, line := range strings.Split(rest, "\n") {
		if line != "" {
			_, _ = fmt.Fprintf(t.w, "%s%s\n", strings.Repeat(" ", 20), line)
		}
	}
}

// output prints a piece of a command's output, line by line: long lines are cut to the width
// of the terminal, and blank ones are left out.
func (t *teller) output(label, text string) {
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if strings.TrimSpace(line) != "" {
			t.say("output", "%s", t.paint("2", clip(label+" │ "+line, t.width-22)))
		}
	}
}

func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n || n < 2 {
		return s
	}
	return string(r[:n-1]) + "…"
}
