package guides

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

var (
	// A command of ours within a line of the shell: what follows its name up to the end of the command.
	ours = regexp.MustCompile(`(?:^|[\s;(|&=]|\$\()(?:[\w./~-]*/)?quartet((?: +(?:"[^"]*"|'[^']*'|[^\s|;&)#"']+))+)`)
	// In the text, code that begins with our name.
	inline     = regexp.MustCompile("`(?:bin/)?quartet ([^`\n]+)`")
	subcommand = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*) +[A-Z]`)
	flagName   = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z][a-z-]*)`)
)

// help is what the binary says of its commands.
type help struct {
	binary string
	known  map[string]string
}

func (h *help) of(path []string) string {
	key := strings.Join(path, " ")
	if _, ok := h.known[key]; !ok {
		said, err := exec.Command(h.binary, append(path, "--help")...).CombinedOutput()
		if err != nil {
			said = nil
		}
		h.known[key] = string(said)
	}
	return h.known[key]
}

func (h *help) subcommands(path []string) map[string]bool {
	_, list, _ := strings.Cut(h.of(path), "\nUsage:")
	list, _, _ = strings.Cut(list, "\nFlags:")
	out := map[string]bool{}
	if i := strings.Index(list, "\nExamples:"); i >= 0 && !strings.Contains(list[i:], "Commands:") && len(path) > 0 {
		return out
	}
	for _, m := range subcommand.FindAllStringSubmatch(list, -1) {
		if m[1] != "quartet" {
			out[m[1]] = true
		}
	}
	return out
}

// check says what is wrong with the words behind our name: a command or a flag that does not exist.
func (h *help) check(words string) string {
	var path []string
	fields := strings.Fields(words)
	for len(fields) > 0 {
		subs := h.subcommands(path)
		if len(subs) == 0 || !regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(fields[0]) {
			break
		}
		if !subs[fields[0]] {
			return "there is no command " + strings.Join(append(path, fields[0]), " ")
		}
		path, fields = append(path, fields[0]), fields[1:]
	}
	flags := map[string]bool{"help": true}
	for _, m := range flagName.FindAllStringSubmatch(h.of(path), -1) {
		flags[m[1]] = true
	}
	for _, f := range fields {
		if f == "--" {
			break
		}
		name, is := strings.CutPrefix(f, "--")
		name, _, _ = strings.Cut(name, "=")
		if name = strings.TrimRight(name, ",.:"); is && regexp.MustCompile(`^[a-z][a-z-]+$`).MatchString(name) &&
			!flags[name] {
			return strings.Join(path, " ") + " has no flag --" + name
		}
	}
	return ""
}

// TestCommandsInTheTextExist looks at all commands of the pages, also those that are not run and those within
// sentences: the command and its flags exist, and blocks are good for the shell.
func TestCommandsInTheTextExist(t *testing.T) {
	h := &help{binary: quartet(t), known: map[string]string{}}
	n := 0
	for _, path := range pages(t) {
		blocks := must.Value(parse(path))(t)
		for _, b := range blocks {
			if !b.commands() {
				continue
			}
			cmd := exec.Command("bash", "-n")
			cmd.Stdin = strings.NewReader(b.text)
			said, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s:%d: %s", path, b.line, said)
			for _, line := range strings.Split(b.text, "\n") {
				for _, m := range ours.FindAllStringSubmatch(line, -1) {
					n++
					if wrong := h.check(m[1]); wrong != "" {
						t.Errorf("%s:%d: %s\n%s", path, b.line, wrong, line)
					}
				}
			}
		}
		raw := must.Value(os.ReadFile(path))(t)
		for _, m := range inline.FindAllStringSubmatch(fenced.ReplaceAllString(string(raw), ""), -1) {
			n++
			if wrong := h.check(m[1]); wrong != "" {
				t.Errorf("%s: %s\n%s", path, wrong, m[0])
			}
		}
	}
	require.Greater(t, n, 150)
	for words, wrong := range map[string]string{
		"agent spawned keeper":       "there is no command agent spawned",
		"work list keeper --nothing": "work list has no flag --nothing",
		"task exec keeper -- ls --x": "",
		"agent list":                 "",
	} {
		require.Equal(t, wrong, h.check(words))
	}
}
