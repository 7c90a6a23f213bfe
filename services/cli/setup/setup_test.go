package setup

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/services/cli/exit"
	"quartet/services/cli/session"
	"quartet/tests/proc"
)

// quartet runs `quartet setup` and returns its output and its exit code.
func quartet(t *testing.T, args ...string) (out string, code int) {
	if !strings.HasPrefix(os.Getenv("XDG_STATE_HOME"), os.TempDir()) {
		t.Setenv("XDG_STATE_HOME", t.TempDir()) // no server of the user who runs the test
		t.Setenv("QUARTET_ADDRESS", freeAddr(t))
	}
	root := &cobra.Command{Use: "quartet", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Command(session.New(root.PersistentFlags(), nil),
		func() string { return os.Getenv("QUARTET_ADDRESS") }))
	var o bytes.Buffer
	root.SetOut(&o)
	root.SetErr(&o)
	root.SetArgs(append([]string{"setup"}, args...))
	cmd, err := root.ExecuteContextC(t.Context())
	if err != nil {
		code = exit.Report(cmd, err)
	}
	return o.String(), code
}

// freeAddr returns an address of loopback at which nothing listens.
func freeAddr(t *testing.T) string {
	return must.Value(proc.FreeAddr())(t)
}

// content returns what a directory has, by path.
func content(t *testing.T, dir string) map[string]string {
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		out[rel] = string(raw)
		return err
	}))
	return out
}

// without returns files without the copies of what was there before.
func without(files map[string]string) map[string]string {
	out := map[string]string{}
	for name, text := range files {
		if !strings.HasSuffix(name, backupSuffix) {
			out[name] = text
		}
	}
	return out
}

func put(t *testing.T, dir, name, text string) {
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o640))
}

// In an empty project setup makes the files, a second run changes nothing, and remove leaves nothing.
func TestAnEmptyProject(t *testing.T) {
	for _, tool := range tools {
		t.Run(tool.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "My Project")
			require.NoError(t, os.Mkdir(dir, 0o755))
			out, code := quartet(t, tool.name, "--check", "--dir", dir)
			require.Equal(t, exit.Failed, code)
			require.Contains(t, out, "missing")
			require.Empty(t, content(t, dir), "a check writes nothing")

			out, code = quartet(t, tool.name, "--dir", dir)
			require.Zero(t, code, out)
			require.Contains(t, out, "my-project")
			files := content(t, dir)
			require.Len(t, files, 3)
			self := must.Value(os.Executable())(t)
			all := ""
			for _, text := range files {
				all += text
			}
			require.Contains(t, all, self)
			require.Contains(t, all, "prime my-project --hook "+tool.name)
			require.Contains(t, all, "--create")
			require.Contains(t, all, "agent my-project")

			out, code = quartet(t, tool.name, "--check", "--dir", dir)
			require.Zero(t, code, out)
			_, code = quartet(t, tool.name, "--dir", dir)
			require.Zero(t, code)
			require.Equal(t, files, content(t, dir), "nothing changes the second time, and nothing is copied")

			_, code = quartet(t, tool.name, "--check", "--dir", dir, "--agent", "another")
			require.Equal(t, exit.Failed, code, "another agent is not what is there")
			_, code = quartet(t, tool.name, "--dir", dir, "--agent", "another")
			require.Zero(t, code)
			for name, text := range without(content(t, dir)) {
				require.NotContains(t, text, "my-project", name)
			}
			_, code = quartet(t, tool.name, "--remove", "--dir", dir)
			require.Zero(t, code)
			require.Empty(t, content(t, dir), "of files that setup has made there is no copy")
			out, code = quartet(t, tool.name, "--remove", "--dir", dir)
			require.Zero(t, code, out)
			require.Contains(t, out, "absent")
		})
	}
}

// Settings of the user stay, in their order and with their mode, and are what they were after remove.
func TestOthersSettingsStay(t *testing.T) {
	claude := map[string]string{
		".mcp.json": "{\n    \"zeta\": 1.50,\n    \"mcpServers\": {\n        \"other\": {\n            \"command\": " +
			"\"x\",\n            \"args\": [\n                \"<a>&b\"\n            ]\n        }\n    },\n    " +
			"\"alpha\": null\n}\n",
		".claude/settings.json": `{
  "permissions": {
    "allow": [
      "Bash(go test:*)"
    ]
  },
  "hooks": {
    "SessionStart": [
      {
        "matcher": "startup",
        "hooks": [
          {
            "type": "command",
            "command": "echo prime numbers"
          }
        ]
      }
    ],
    "Stop": [
      {
        "hooks": [
          {
            "type": "command",
            "command": "date"
          }
        ]
      }
    ]
  },
  "model": "x"
}
`,
		"CLAUDE.md": "# Rules\n\nBe brief.\n",
	}
	codex := map[string]string{
		".codex/config.toml": "# my settings\nmodel = \"m\" # the model\n\n[mcp_servers.other]\ncommand = " +
			"\"x\"\nargs = [\n  \"[mcp_servers.quartet]\",\n  '''\n[a]\n''',\n]\n\n# the end\n[features]\nhooks " +
			"= true\n",
		".codex/hooks.json": "{\n\t\"hooks\": {\n\t\t\"Stop\": [\n\t\t\t{\n\t\t\t\t\"hooks\": " +
			"[\n\t\t\t\t\t{\n\t\t\t\t\t\t\"type\": \"command\",\n\t\t\t\t\t\t\"command\": " +
			"\"date\"\n\t\t\t\t\t}\n\t\t\t\t]\n\t\t\t}\n\t\t]\n\t}\n}\n",
		"AGENTS.md": "Use tabs.\n",
	}
	cursor := map[string]string{
		".cursor/mcp.json": "{\n  \"mcpServers\": {\n    \"other\": {\n      \"url\": \"http://x\"\n    " +
			"}\n  }\n}\n",
		".cursor/hooks.json": "{\n  \"version\": 1,\n  \"hooks\": {\n    \"sessionStart\": [\n      {\n      " +
			"  \"command\": \"./mine.sh\"\n      }\n    ]\n  }\n}\n",
		".cursor/rules/my-rules.mdc": "mine",
	}
	for name, before := range map[string]map[string]string{"claude": claude, "codex": codex, "cursor": cursor} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for path, text := range before {
				put(t, dir, path, text)
			}
			out, code := quartet(t, name, "--dir", dir, "--agent", "memory")
			require.Zero(t, code, out)
			after := content(t, dir)
			for path, text := range before {
				if path == ".cursor/rules/my-rules.mdc" || path == ".codex/config.toml" {
					require.Equal(t, text, after[path])
					continue
				}
				require.Equal(t, text, after[path+backupSuffix], "what was there before is kept beside it")
				require.NotEqual(t, text, after[path])
				for _, line := range strings.Split(text, "\n") {
					require.Contains(t, after[path], strings.TrimRight(line, ","), path)
				}
				info := must.Value(os.Stat(filepath.Join(dir, path)))(t)
				require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
			}
			out, code = quartet(t, name, "--remove", "--dir", dir)
			require.Zero(t, code, out)
			require.Equal(t, before, content(t, dir), "a copy that equals what is left is removed")
		})
	}
}

// The copy of what the user had is never replaced: not by a second setup, and not by one after the file was changed.
func TestTheFirstCopyIsKept(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, ".mcp.json", `{"mcpServers":{"other":{"command":"x"}}}`)
	for _, agent := range []string{"one", "two"} {
		out, code := quartet(t, "claude", "--dir", dir, "--agent", agent)
		require.Zero(t, code, out)
		files := content(t, dir)
		require.Equal(t, `{"mcpServers":{"other":{"command":"x"}}}`, files[".mcp.json"+backupSuffix])
		require.Len(t, files, 4, "the other files are of setup")
	}
	out, code := quartet(t, "claude", "--remove", "--dir", dir)
	require.Zero(t, code, out)
	require.Equal(t, map[string]string{".mcp.json": `{"mcpServers":{"other":{"command":"x"}}}`}, content(t, dir),
		"in the form in which the user wrote it")

	out, code = quartet(t, "claude", "--dir", dir)
	require.Zero(t, code, out)
	put(t, dir, ".mcp.json", `{"mine": true}`)
	out, code = quartet(t, "claude", "--dir", dir)
	require.Zero(t, code, out)
	files := content(t, dir)
	require.Equal(t, `{"mcpServers":{"other":{"command":"x"}}}`, files[".mcp.json"+backupSuffix])
	require.Len(t, files, 4, "there is one copy")
}

// What the user added to the entry of Quartet stays.
func TestAnEntryIsUpdated(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, ".mcp.json",
		`{"mcpServers": {"quartet": {"command": "/old/quartet", "args": ["mcp"], "env": {"QUARTET_ADDRESS": "h:1"}}}}`)
	put(t, dir, ".claude/settings.json",
		`{"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "/old/quartet prime x"}, {"type": "command", "command": "date"}]}]}}`)
	out, code := quartet(t, "claude", "--dir", dir, "--agent", "memory", "--address", "h:2")
	require.Zero(t, code, out)
	files := content(t, dir)
	self := must.Value(os.Executable())(t)
	var servers struct {
		Servers map[string]struct {
			Type, Command string
			Args          []string
			Env           map[string]string
		} `json:"mcpServers"`
	}
	require.NoError(t, json.Unmarshal([]byte(files[".mcp.json"]), &servers))
	got := servers.Servers["quartet"]
	require.Equal(t, self, got.Command)
	require.Equal(t, []string{"mcp", "--agent", "memory", "--create", "--tools", "memory", "--address", "h:2"},
		got.Args)
	require.Equal(t, map[string]string{"QUARTET_ADDRESS": "h:1"}, got.Env)

	require.NotContains(t, files[".claude/settings.json"], "/old/quartet")
	require.Contains(t, files[".claude/settings.json"], "date")
	require.Equal(t, 1, strings.Count(files[".claude/settings.json"], " prime "))
}

// A config.toml of Codex that has settings is read and never written: setup prints what to enter.
func TestSettingsOfCodexAreLeftToTheUser(t *testing.T) {
	dir := t.TempDir()
	const mine = "model = 'm' # mine\n"
	put(t, dir, ".codex/config.toml", mine)
	out, code := quartet(t, "codex", "--dir", dir, "--agent", "memory")
	require.Zero(t, code, out)
	require.Regexp(t, `by hand +MCP server`, out)
	self := must.Value(os.Executable())(t)
	_, snippet, found := strings.Cut(out, "Add to "+filepath.Join(dir, ".codex/config.toml")+":\n")
	require.True(t, found, out)
	snippet, _, _ = strings.Cut(snippet, "\n\n")
	require.Equal(t, mine, content(t, dir)[".codex/config.toml"])
	out, code = quartet(t, "codex", "--dir", dir, "--agent", "memory", "--check")
	require.Equal(t, exit.Failed, code)
	require.Regexp(t, `missing +MCP server`, out)
	require.Contains(t, out, snippet)

	var doc struct {
		Servers map[string]map[string]any `toml:"mcp_servers"`
	}
	require.NoError(t, toml.Unmarshal([]byte(mine+snippet), &doc))
	require.Equal(t, self, doc.Servers["quartet"]["command"])
	put(t, dir, ".codex/config.toml", mine+snippet+"\nstartup_timeout_sec = 20\n")
	out, code = quartet(t, "codex", "--dir", dir, "--agent", "memory", "--check")
	require.Zero(t, code, out)
	out, code = quartet(t, "codex", "--dir", dir, "--agent", "other")
	require.Zero(t, code, out)
	require.Contains(t, out, "Replace the entry quartet in")
	out, code = quartet(t, "codex", "--dir", dir, "--remove")
	require.Zero(t, code, out)
	require.Contains(t, out, "Remove the entry quartet from")
	require.Equal(t, mine+snippet+"\nstartup_timeout_sec = 20\n", content(t, dir)[".codex/config.toml"])
}

// What cannot be edited safely is refused, and then no file is changed.
func TestWhatCannotBeEditedIsRefused(t *testing.T) {
	for _, c := range []struct{ tool, path, text, want string }{
		{"claude", ".claude/settings.json", "{\n  // comment\n}", "near line 2"},
		{"claude", ".claude/settings.json", "[]", "no JSON object"},
		{"claude", ".mcp.json", "no", "nothing was changed\nAdd to "},
		{"claude", ".claude/settings.json", `{"hooks": []}`, `"hooks" is no object`},
		{"claude", ".claude/settings.json", `{"hooks": {"SessionStart": {}}}`, `"SessionStart" is no list`},
		{"claude", ".mcp.json", `{"a": 1, "a": 2}`, "twice"},
		{"claude", ".mcp.json", `{"a": 1} {}`, "follows"},
		{"claude", ".mcp.json", `{"mcpServers": {"quartet": []}}`, `"quartet" is no object`},
		{"claude", "CLAUDE.md", rulesBegin + "\n", "do not enclose"},
		{"codex", ".codex/config.toml", "a = = 1", "it is no TOML"},
		{"codex", ".codex/config.toml", "mcp_servers = 1\n", "no TOML with a table mcp_servers"},
		{"cursor", ".cursor/hooks.json", `{"hooks": {"sessionStart": 1}}`, `"sessionStart" is no list`},
	} {
		dir := t.TempDir()
		put(t, dir, c.path, c.text)
		before := content(t, dir)
		out, code := quartet(t, c.tool, "--dir", dir, "--agent", "a")
		require.Equal(t, exit.Failed, code, c.text)
		require.Contains(t, out, c.want, c.text)
		require.Contains(t, out, c.path)
		require.Equal(t, before, content(t, dir), c.text)
	}
	for want, args := range map[string][]string{
		"no coding agent that is known": {"emacs"},
		"contradict":                    {"claude", "--check", "--remove"},
		"is no directory":               {"claude", "--dir", filepath.Join(t.TempDir(), "none")},
		"--agent is missing":            {"claude", "--user"},
		"TOOL is missing":               {},
	} {
		out, code := quartet(t, args...)
		require.Equal(t, exit.Usage, code, want)
		require.Contains(t, out, want)
	}
}

// The settings of a user are in the home directory, or where the coding agent's variable says.
func TestSettingsOfAUser(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("CODEX_HOME", "")
	t.Setenv("CLAUDE_CONFIG_DIR", "")
	put(t, home, ".claude.json", `{"numStartups": 7, "projects": {"/p": {"history": [1, 2]}}}`)
	for tool, want := range map[string][]string{
		"claude": {".claude/settings.json", ".claude/CLAUDE.md"},
		"codex":  {".codex/config.toml", ".codex/hooks.json", ".codex/AGENTS.md"},
		"cursor": {".cursor/mcp.json", ".cursor/hooks.json"},
	} {
		out, code := quartet(t, tool, "--user", "--agent", "me")
		require.Zero(t, code, out)
		for _, path := range want {
			require.FileExists(t, filepath.Join(home, path))
		}
	}
	self := must.Value(os.Executable())(t)
	const state = `{"numStartups": 7, "mcpServers": {"quartet": {"command": "/old"}}}`
	put(t, home, ".claude.json", state)
	out, code := quartet(t, "claude", "--user", "--agent", "me")
	require.Zero(t, code, out)
	add := "  claude mcp add --scope user quartet -- " + self + " mcp --agent me --create --tools memory\n"
	require.Contains(t, out, "Run:\n  claude mcp remove --scope user quartet\n"+add)
	require.Equal(t, state, content(t, home)[".claude.json"], "a running session writes that file")
	put(t, home, ".codex/config.toml", "a = 1\n")
	out, code = quartet(t, "codex", "--user", "--agent", "me")
	require.Zero(t, code, out)
	require.Contains(t, out, "Run:\n  codex mcp add quartet -- "+self+" mcp")
	elsewhere := t.TempDir()
	t.Setenv("CODEX_HOME", elsewhere)
	_, code = quartet(t, "codex", "--user", "--agent", "me")
	require.Zero(t, code)
	require.FileExists(t, filepath.Join(elsewhere, "config.toml"))
}

// A link stays a link, and a file that another program changed meanwhile is not replaced.
func TestFilesAreReplacedWithCare(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "real.json", "{}")
	link := filepath.Join(dir, "link.json")
	require.NoError(t, os.Symlink(filepath.Join(dir, "real.json"), link))
	require.NoError(t, writeFile(link, []byte("{}"), []byte("{ }"), true))
	require.NotZero(t, must.Value(os.Lstat(link))(t).Mode()&os.ModeSymlink)
	require.Equal(t, "{ }", content(t, dir)["real.json"])
	require.ErrorContains(t, writeFile(link, []byte("{}"), []byte("x"), true), "changed by another program")
	require.ErrorContains(t, writeFile(filepath.Join(dir, "new"), []byte("{}"), []byte("x"), true),
		"changed by another program")
}

func TestNamesOfAgents(t *testing.T) {
	for dir, want := range map[string]string{
		"/src/My Project": "my-project", "/src/a--b__c": "a-b-c", "/": "project", "/src/2048": "project-2048",
		"/src/日本": "project", "/src/" + strings.Repeat("x", 100): strings.Repeat("x", 63),
	} {
		require.Equal(t, want, agentOf(dir), dir)
	}
	require.Equal(t, `'/a b/it'\''s'`, quoteShell("/a b/it's"))
}

// Whatever a document of TOML is, it is replaced only if nothing of the user is in it.
func FuzzTOML(f *testing.F) {
	for _, seed := range []string{
		"", "a = 1\n", "[mcp_servers.quartet]\nargs = [\n 'a', # b\n]\n[x]\n", "mcp_servers = 1", "a = = 1",
		string(tomlServer("/b", []string{"c\"d"})),
		"a.b = {c = [1, 2]}\r\n[ mcp_servers . \"quartet\" ]\r\ncommand='x'\r\n",
	} {
		f.Add(seed)
	}
	w := wanted{binary: `/a "b"\c`, agent: "x", tool: "codex"}
	f.Fuzz(func(t *testing.T, text string) {
		for _, remove := range []bool{false, true} {
			next, err := editTOML([]byte(text), w, remove)
			if err != nil || string(next) == text {
				continue
			}
			if strings.TrimSpace(text) != "" {
				require.True(t, strings.HasPrefix(text, "[mcp_servers.quartet]\ncommand = "), text)
				require.Equal(t, 3, strings.Count(text, "\n"), text)
			}
			if remove {
				require.Nil(t, next)
				continue
			}
			require.Equal(t, string(next), string(must.Value(editTOML(next, w, false))(t)))
		}
	})
}

// Whatever JSON is there, what is not ours is the same after entering and removing the server and the hook.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		"", "{}", `{"mcpServers":{"quartet":{"command":"x"}}}`,
		`{"hooks":{"SessionStart":[{"hooks":[{"command":"quartet prime x"},{"command":"y"}]}]},"n":1e400}`,
	} {
		f.Add(seed)
	}
	w := wanted{binary: "/a/quartet", agent: "x", tool: "claude"}
	f.Fuzz(func(t *testing.T, text string) {
		for _, e := range []edit{editMCPServers(true), editHooks, editCursorHooks} {
			next, err := e([]byte(text), w, false)
			if err != nil {
				continue
			}
			require.True(t, json.Valid(next), "%s", next)
			require.Equal(t, string(next), string(must.Value(e(next, w, false))(t)))
			rest := must.Value(e(next, w, true))(t)
			require.Equal(t, string(rest), string(must.Value(e(rest, w, true))(t)))
		}
	})
}
