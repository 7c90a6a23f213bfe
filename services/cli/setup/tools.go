package setup

import (
	"os"
	"path/filepath"
	"regexp"
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
// without it. It returns old itself if nothing changes, and nil if nothing is left. Its errors are about the content.
type edit func(old []byte, w wanted, remove bool) ([]byte, error)

// target is a file of a coding agent.
type target struct {
	path string
	what string // what it is for
	edit edit
}

// tool is a coding agent.
type tool struct {
	name, title string
	// project and user return the files of a project directory, and of a user with this home directory.
	project, user func(dir string) []target
	// note says what else a user does; "" for nothing.
	note string
}

// sessionStarts are the occasions of a session's start after which the context is empty or new.
const sessionStarts = "startup|resume|clear|compact"

// tools are the coding agents that are known.
var tools = []tool{
	{
		name: "claude", title: "Claude Code",
		project: func(dir string) []target {
			return []target{
				{filepath.Join(dir, ".mcp.json"), "MCP server", editMCPServers(true)},
				{
					filepath.Join(dir, ".claude", "settings.json"),
					"hook at the start of a session and after a compaction", editHooks(),
				},
				{filepath.Join(dir, "CLAUDE.md"), "rules", editRules("")},
			}
		},
		user: func(home string) []target {
			dir := os.Getenv("CLAUDE_CONFIG_DIR")
			servers := filepath.Join(dir, ".claude.json")
			if dir == "" {
				dir, servers = filepath.Join(home, ".claude"), filepath.Join(home, ".claude.json")
			}
			return []target{
				{servers, "MCP server", editMCPServers(true)},
				{
					filepath.Join(dir, "settings.json"), "hook at the start of a session and after a compaction",
					editHooks(),
				},
				{filepath.Join(dir, "CLAUDE.md"), "rules", editRules("")},
			}
		},
		note: "Claude Code asks once whether the server of a project may be used; /mcp shows it.",
	},
	{
		name: "codex", title: "Codex",
		project: func(dir string) []target {
			return codexFiles(filepath.Join(dir, ".codex"), filepath.Join(dir, "AGENTS.md"))
		},
		user: func(home string) []target {
			dir := os.Getenv("CODEX_HOME")
			if dir == "" {
				dir = filepath.Join(home, ".codex")
			}
			return codexFiles(dir, filepath.Join(dir, "AGENTS.md"))
		},
		note: "Codex reads the files of a project that it trusts, and runs a new hook once you have trusted it: " +
			"/hooks.",
	},
	{
		name: "cursor", title: "Cursor",
		project: func(dir string) []target {
			return append(cursorFiles(filepath.Join(dir, ".cursor")),
				target{filepath.Join(dir, ".cursor", "rules", "quartet.mdc"), "rules", editRules(cursorHead)})
		},
		user: func(home string) []target { return cursorFiles(filepath.Join(home, ".cursor")) },
		note: "Cursor lets no hook add to the context after a compaction; the rules tell the model to read its open " +
			"work then. Rules of a user are in its settings: without a project, enter them there.",
	},
}

// codexFiles returns the files of Codex below a directory, and the one with its rules.
func codexFiles(dir, rules string) []target {
	return []target{
		{filepath.Join(dir, "config.toml"), "MCP server", editTOML},
		{filepath.Join(dir, "hooks.json"), "hook at the start of a session and after a compaction", editHooks()},
		{rules, "rules", editRules("")},
	}
}

// cursorFiles returns the files of Cursor below a directory.
func cursorFiles(dir string) []target {
	return []target{
		{filepath.Join(dir, "mcp.json"), "MCP server", editMCPServers(false)},
		{filepath.Join(dir, "hooks.json"), "hook at the start of a session", editCursorHooks("sessionStart")},
	}
}
