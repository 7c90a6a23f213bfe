package setup

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// serverName is the name of the MCP server in the settings of coding agents.
const serverName = "quartet"

// wanted is what is entered.
type wanted struct {
	binary  string // absolute path of this program
	agent   string
	address string // --address, if it was given
	tool    string // the coding agent
}

// mcpArgs returns the arguments of the MCP server.
func (w wanted) mcpArgs() []string {
	args := []string{"mcp", "--agent", w.agent, "--create", "--tools", "memory"}
	if w.address != "" {
		args = append(args, "--address", w.address)
	}
	return args
}

// hookCommand returns the command line of the hook, for a shell.
func (w wanted) hookCommand() string {
	words := []string{quoteShell(w.binary), "prime", quoteShell(w.agent), "--hook", w.tool}
	if w.address != "" {
		words = append(words, "--address", quoteShell(w.address))
	}
	return strings.Join(words, " ")
}

// simpleWord matches a word that a shell takes as it is.
var simpleWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quoteShell quotes a word for a POSIX shell.
func quoteShell(s string) string {
	if simpleWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// edit returns the new content of a file with the content old: with what is wanted in it or, if remove is set,
// without it. It returns old itself if nothing changes, and nil if nothing is left. Its errors are about the content;
// a byHand says that the user has to make the change.
type edit func(old []byte, w wanted, remove bool) ([]byte, error)

// byHand is the error of an edit that setup leaves to the user. exists says that the file has an entry of Quartet.
type byHand struct{ exists bool }

func (byHand) Error() string { return "the user changes this file" }

// target is a file of a coding agent.
type target struct {
	path string
	what string // what it is for
	edit edit
	// command returns the words of the coding agent's own command that adds or removes what is wanted; nil where it has
	// none.
	command func(w wanted, remove bool) []string
}

// byCommand makes an edit one that the user makes with the coding agent's own command, because a running session
// writes the file too.
func byCommand(e edit) edit {
	return func(old []byte, w wanted, remove bool) ([]byte, error) {
		next, err := e(old, w, remove)
		if err != nil || bytes.Equal(old, next) {
			return old, err
		}
		rest, err := e(old, w, true)
		if err != nil {
			return nil, err
		}
		return nil, byHand{exists: !bytes.Equal(old, rest)}
	}
}

// byHandText says what the user does about a target that setup does not change itself.
func (t target) byHandText(w wanted, remove, exists bool) string {
	if t.command != nil {
		lines := ""
		if remove || exists {
			lines += "\n" + shellLine(t.command(w, true))
		}
		if !remove {
			lines += "\n" + shellLine(t.command(w, false))
		}
		return "Run:" + lines
	}
	snippet, err := t.edit(nil, w, false)
	switch {
	case err != nil:
		return ""
	case remove:
		return "Remove the entry " + serverName + " from " + t.path + "."
	case exists:
		return "Replace the entry " + serverName + " in " + t.path + " by:\n" + string(snippet)
	}
	return "Add to " + t.path + ":\n" + string(snippet)
}

// shellLine returns a command for a shell.
func shellLine(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quoteShell(w)
	}
	return "  " + strings.Join(quoted, " ")
}

// mcpCommand returns the command of a coding agent that adds or removes the server for all projects of a user. The
// commands of Claude Code and Codex differ in the options only.
func mcpCommand(program string, options ...string) func(w wanted, remove bool) []string {
	return func(w wanted, remove bool) []string {
		if remove {
			return slices.Concat([]string{program, "mcp", "remove"}, options, []string{serverName})
		}
		return slices.Concat([]string{program, "mcp", "add"}, options, []string{serverName, "--", w.binary},
			w.mcpArgs())
	}
}

// tool is a coding agent.
type tool struct {
	name, title string
	// project and user return the files of a project directory, and of a user with this home directory.
	project, user func(dir string) []target
	// note says what else a user does; "" for nothing.
	note string
}

// What files are for.
const (
	serverWhat = "MCP server"
	hookWhat   = "hook at the start of a session and after a compaction"
)

// sessionStarts are the occasions of a session's start after which the context is empty or new.
const sessionStarts = "startup|resume|clear|compact"

// tools are the coding agents that are known.
var tools = []tool{
	{
		name: "claude", title: "Claude Code",
		project: func(dir string) []target {
			return []target{
				{path: filepath.Join(dir, ".mcp.json"), what: serverWhat, edit: editMCPServers(true)},
				{path: filepath.Join(dir, ".claude", "settings.json"), what: hookWhat, edit: editHooks},
				{path: filepath.Join(dir, "CLAUDE.md"), what: "rules", edit: editRules("")},
			}
		},
		user: func(home string) []target {
			dir := os.Getenv("CLAUDE_CONFIG_DIR")
			servers := filepath.Join(dir, ".claude.json")
			if dir == "" {
				dir, servers = filepath.Join(home, ".claude"), filepath.Join(home, ".claude.json")
			}
			return []target{
				{
					path: servers, what: serverWhat, edit: byCommand(editMCPServers(true)),
					command: mcpCommand("claude", "--scope", "user"),
				},
				{path: filepath.Join(dir, "settings.json"), what: hookWhat, edit: editHooks},
				{path: filepath.Join(dir, "CLAUDE.md"), what: "rules", edit: editRules("")},
			}
		},
		note: "Claude Code asks once whether the server of a project may be used; /mcp shows it.",
	},
	{
		name: "codex", title: "Codex",
		project: func(dir string) []target {
			return codexFiles(filepath.Join(dir, ".codex"), filepath.Join(dir, "AGENTS.md"), nil)
		},
		user: func(home string) []target {
			dir := os.Getenv("CODEX_HOME")
			if dir == "" {
				dir = filepath.Join(home, ".codex")
			}
			return codexFiles(dir, filepath.Join(dir, "AGENTS.md"), mcpCommand("codex"))
		},
		note: "Codex reads the files of a project that it trusts, and runs a new hook once you have trusted it: " +
			"/hooks.",
	},
	{
		name: "cursor", title: "Cursor",
		project: func(dir string) []target {
			return append(cursorFiles(filepath.Join(dir, ".cursor")),
				target{
					path: filepath.Join(dir, ".cursor", "rules", "quartet.mdc"), what: "rules",
					edit: editRules(cursorHead),
				})
		},
		user: func(home string) []target { return cursorFiles(filepath.Join(home, ".cursor")) },
		note: "Cursor lets no hook add to the context after a compaction; the rules tell the model to read its open " +
			"work then. Rules of a user are in its settings: without a project, enter them there.",
	},
}

// codexFiles returns the files of Codex below a directory, and the one with its rules. command adds the server.
func codexFiles(dir, rules string, command func(w wanted, remove bool) []string) []target {
	return []target{
		{path: filepath.Join(dir, "config.toml"), what: serverWhat, edit: editTOML, command: command},
		{path: filepath.Join(dir, "hooks.json"), what: hookWhat, edit: editHooks},
		{path: rules, what: "rules", edit: editRules("")},
	}
}

// cursorFiles returns the files of Cursor below a directory.
func cursorFiles(dir string) []target {
	return []target{
		{path: filepath.Join(dir, "mcp.json"), what: serverWhat, edit: editMCPServers(false)},
		{path: filepath.Join(dir, "hooks.json"), what: "hook at the start of a session", edit: editCursorHooks},
	}
}
