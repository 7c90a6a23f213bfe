package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/local"
	"quartet/services/cli/session"
)

// options are the flags of `quartet setup`.
type options struct {
	check, remove, user bool
	agent, dir          string
}

// Command returns `quartet setup`. listens returns the address at which `quartet dev` would listen now: if no server
// answers there, `quartet mcp` starts one. nil: it starts none.
func Command(s *session.Session, listens func() string) *cobra.Command {
	var o options
	var names []string
	for _, t := range tools {
		names = append(names, t.name)
	}
	cmd := &cobra.Command{
		Use: "setup TOOL", Short: "Make Quartet the memory of a coding agent: " + strings.Join(names, ", "),
		Args: input.Exactly("TOOL"),
		Long: `Enter Quartet into the settings of a coding agent: the MCP server with the absolute path
of this program, a hook that runs "quartet prime" at the start of a session and after a
compaction, and rules that tell the model to keep its work in Quartet.

The settings are those of the project in the working directory, or with --user those of
all your projects. What else is in the files stays. A file that is changed is replaced
as a whole, and what was in it before the first change is beside it with the suffix
.before-quartet. A second run changes nothing, unless the path of this program, the
agent or the address changed. A file that cannot be read is never changed: the error
says what to enter.

Some changes are yours: setup prints the coding agent's own command for them, such as
"claude mcp add" with --user, or the text to add to a config.toml of Codex that has
settings already.

The settings name the server only if --address is given. It says whether one answers
there, and if not, where one of yours does.

--check changes nothing, says what is missing, and ends with the exit code 1 if anything
is: also a server, unless "quartet mcp" starts one at that address. --remove takes out
what setup has entered, and nothing else, and the copies that equal what is left.`,
		Example: "  quartet setup claude\n  quartet setup codex --agent my-project --check\n  quartet setup cursor " +
			"--remove\n  quartet setup claude --user --agent me",
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, t := range tools {
				if t.name == args[0] {
					return run(s, cmd, t, o, listens)
				}
			}
			return exit.UsageError(fmt.Sprintf("%q is no coding agent that is known; use one of %s", args[0],
				strings.Join(names, ", ")))
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.check, "check", false, "Only say what is missing")
	f.BoolVar(&o.remove, "remove", false, "Remove it")
	f.BoolVar(&o.user, "user", false, "The settings of all your projects instead of those of this one")
	f.StringVar(&o.agent, "agent", "",
		"The agent that stores the memory (default: the name of the project's directory)")
	f.StringVar(&o.dir, "dir", "", "The project's directory (default: the working directory)")
	return cmd
}

// result is what was found or done about a file.
type result struct {
	Path   string `json:"path"`
	What   string `json:"what"`
	Status string `json:"status"` // present, missing, written, removed, absent, by hand
	// Do is what the user does about the file, if Status is missing or by hand and setup does not change it.
	Do string `json:"do,omitempty"`
}

// run enters, checks or removes.
func run(s *session.Session, cmd *cobra.Command, t tool, o options, listens func() string) error {
	if o.check && o.remove {
		return exit.UsageError("--check and --remove contradict each other")
	}
	w, files, err := plan(cmd, t, o)
	if err != nil {
		return err
	}
	var at server
	if !o.remove {
		if at, err = find(s, cmd, listens); err != nil {
			return err
		}
	}
	// All files are read and edited before the first one is written, so that one that cannot be edited stops all.
	type change struct {
		target
		old, next []byte
	}
	var changes []change
	var results []result
	missing := at.Status == "missing"
	for _, f := range files {
		old, err := readFile(f.path)
		if err != nil {
			return err
		}
		next, err := f.edit(old, w, o.remove)
		r := result{Path: f.path, What: f.what, Status: "present"}
		if o.remove {
			r.Status = "absent"
		}
		var yours byHand
		switch {
		case errors.As(err, &yours):
			r.Status, r.Do = "by hand", f.byHandText(w, o.remove, yours.exists)
		case err != nil:
			return refusal(f, w, o.remove, err)
		case !bytes.Equal(old, next) || (old == nil) != (next == nil):
			changes = append(changes, change{f, old, next})
			r.Status = map[bool]string{true: "removed", false: "written"}[o.remove]
		}
		if o.check && (r.Status == "written" || r.Status == "by hand") {
			r.Status, missing = "missing", true
		}
		results = append(results, r)
	}
	if !o.check {
		for _, c := range changes {
			if err := writeFile(c.path, c.old, c.next, keeps(c.target, c.old, w, o.remove)); err != nil {
				return err
			}
		}
	}
	if err := show(s, cmd, t, w, results, at, o); err != nil {
		return err
	}
	if o.check && missing {
		return exit.Silently(exit.Failed)
	}
	return nil
}

// refusal returns the error about a file that cannot be edited, with what the user enters.
func refusal(f target, w wanted, remove bool, err error) error {
	text := ""
	if !remove {
		text = "\n" + f.byHandText(w, false, false)
	}
	return fmt.Errorf("%s: %w; nothing was changed%s", f.path, err, text)
}

// keeps reports whether a copy is made of what is in a file before something is entered into it: not if setup made it.
func keeps(f target, old []byte, w wanted, remove bool) bool {
	if remove || old == nil {
		return false
	}
	rest, err := f.edit(old, w, true)
	return err != nil || rest != nil
}

// plan returns what setup enters (w), and the files into which it enters that or from which it removes it.
func plan(cmd *cobra.Command, t tool, o options) (w wanted, files []target, err error) {
	dir := o.dir
	if dir == "" {
		dir = "."
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return w, nil, err
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return w, nil, exit.UsageError(dir + " is no directory")
	}
	w = wanted{agent: o.agent, tool: t.name}
	if f := cmd.Flag("address"); f != nil && f.Changed {
		w.address = f.Value.String()
	}
	if w.binary, err = local.Program(); err != nil {
		return w, nil, err
	}
	if o.user {
		home, err := os.UserHomeDir()
		if err != nil {
			return w, nil, err
		}
		if w.agent == "" && !o.remove {
			return w, nil, exit.UsageError("--agent is missing: the agent that stores the memory of all your projects")
		}
		return w, t.user(home), nil
	}
	if w.agent == "" {
		w.agent = agentOf(dir)
	}
	return w, t.project(dir), nil
}

// maxAgent is the length of the longest name that agentOf returns.
const maxAgent = 63

// agentOf returns the name of a directory as the name of an agent: lower-case letters, digits and single hyphens, a
// letter first, at most maxAgent characters.
func agentOf(dir string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(filepath.Base(dir)) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else if b.Len() > 0 && !strings.HasSuffix(b.String(), "-") {
			b.WriteByte('-')
		}
	}
	name := strings.Trim(b.String()[:min(b.Len(), maxAgent)], "-")
	if name == "" || name[0] < 'a' {
		name = strings.TrimRight("project-"+name, "-")
	}
	return name[:min(len(name), maxAgent)]
}

// show prints the results.
func show(s *session.Session, cmd *cobra.Command, t tool, w wanted, results []result, at server, o options) error {
	if s.JSON() {
		document := map[string]any{"tool": t.name, "agent": w.agent, "binary": w.binary, "files": results}
		if !o.remove {
			document["server"] = at
		}
		raw, err := json.MarshalIndent(document, "", "  ")
		if err == nil {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", raw)
		}
		return err
	}
	p := s.Printer(cmd)
	var rows [][]string
	missing := false
	for _, r := range results {
		missing = missing || r.Status == "missing"
		rows = append(rows, []string{r.Status, r.What, terminal.Printable(r.Path)})
	}
	if !o.remove {
		rows = append(rows, []string{at.Status, "server", terminal.Printable(at.Address)})
	}
	p.Table("", []string{"STATUS", "WHAT", "WHERE"}, rows)
	for _, r := range results {
		if r.Do != "" {
			p.Printf("\n%s\n", strings.TrimRight(r.Do, "\n"))
		}
	}
	switch {
	case o.remove:
		return p.Err()
	case o.check && missing:
		p.Printf("\nenter what is missing with: %s\n", again(cmd, t, ""))
	case o.check:
	default:
		p.Printf("\n%s keeps its work in Quartet, as agent %s. Start a new session to begin.\n", t.title, w.agent)
		p.Printf("%s\n", t.note)
	}
	if text := at.warning(cmd, t); text != "" {
		p.Printf("\n%s\n", text)
	}
	return p.Err()
}
