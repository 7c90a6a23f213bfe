package guides

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// root is the directory of the repository.
const root = "../.."

// block is a part of a page that the test runs, writes to a file, or must not run.
type block struct {
	line     int // of the page, for messages
	language string
	text     string
	terminal bool
	exit     string   // the code with which it ends, if it is not 0
	file     string   // the file that it is
	skip     string   // why it is not run
	hidden   bool     // it is in a comment
	shows    []string // lines of its output
}

func (b block) commands() bool { return b.language == "sh" && b.file == "" }

// directive is what a comment of a page says.
type directive struct{ words, commands string }

var (
	comment  = regexp.MustCompile(`(?s)^<!-- test: ([^\n]*?)(?:\n(.*?))?\s*-->$`)
	heading  = regexp.MustCompile(`^#+ (.*)`)
	data     = regexp.MustCompile(`^(json|yaml|go|python|typescript|toml|text|mermaid|ini)$`)
	wordsArg = regexp.MustCompile(`^(terminal|stop|exit|file|skip section|skip|run terminal|run)(?: (.*))?$`)
)

// parse reads the blocks of a page. A comment that says nothing that this package knows, and a block that nobody
// would know what to do with, are errors.
func parse(path string) ([]block, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var (
		out     []block
		next    = block{}
		section string // why nothing of this section is run
		lines   = strings.Split(string(raw), "\n")
	)
	for i := 0; i < len(lines); i++ {
		switch line := lines[i]; {
		case strings.HasPrefix(line, "<!-- test:"):
			first := i
			for i < len(lines)-1 && !strings.HasSuffix(lines[i], "-->") {
				i++
			}
			d, err := read(strings.Join(lines[first:i+1], "\n"))
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, first+1, err)
			}
			made, err := d.apply(&next, &section)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, first+1, err)
			}
			if made {
				out = append(out, block{
					line: first + 1, language: "sh", text: d.commands, terminal: next.terminal,
					hidden: true,
				})
				next = block{}
			}
		case strings.HasPrefix(line, "```"):
			b := next
			next, b.line, b.language = block{}, i+1, strings.TrimPrefix(line, "```")
			for i++; i < len(lines) && lines[i] != "```"; i++ {
				b.text += lines[i] + "\n"
			}
			if b.skip == "" {
				b.skip = section
			}
			switch {
			case b.language == "sh" || b.file != "":
				out = append(out, b)
			case data.MatchString(b.language):
			case b.language != "":
				return nil, fmt.Errorf("%s:%d: blocks of %q are neither commands (sh) nor known data", path, b.line,
					b.language)
			case len(out) == 0 || !out[len(out)-1].commands() || out[len(out)-1].shows != nil || out[len(out)-1].hidden:
				return nil, fmt.Errorf("%s:%d: a block without a language shows the output of commands, and here are "+
					"none: sh for commands, text for text", path, b.line)
			default:
				out[len(out)-1].shows = strings.Split(strings.TrimRight(b.text, "\n"), "\n")
			}
		case heading.MatchString(line):
			section = ""
		}
	}
	return out, nil
}

func read(text string) (directive, error) {
	m := comment.FindStringSubmatch(text)
	if m == nil || !wordsArg.MatchString(m[1]) {
		return directive{}, fmt.Errorf("%q is no comment for this test: see the package's documentation", text)
	}
	return directive{words: m[1], commands: m[2] + "\n"}, nil
}

// apply sets what the directive says of the next block or of the section. It reports whether the directive has
// commands of its own.
func (d *directive) apply(next *block, section *string) (bool, error) {
	m := wordsArg.FindStringSubmatch(d.words)
	if wants := m[1] == "exit" || m[1] == "file" || strings.HasPrefix(m[1], "skip"); wants != (m[2] != "") {
		return false, fmt.Errorf("%q has too much or too little behind its word", d.words)
	}
	switch m[1] {
	case "terminal":
		next.terminal = true
	case "exit":
		next.exit = m[2]
	case "file":
		next.file = m[2]
	case "skip":
		next.skip = m[2]
	case "skip section":
		*section = m[2]
	case "stop":
		d.commands = stopTerminal
		return true, nil
	case "run", "run terminal":
		next.terminal = m[1] == "run terminal"
		if strings.TrimSpace(d.commands) == "" {
			return false, fmt.Errorf("%q has no commands on its next lines", d.words)
		}
		return true, nil
	}
	return false, nil
}
