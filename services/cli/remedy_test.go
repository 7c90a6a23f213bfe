package cli

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	"quartet/services/cli/agents"
	"quartet/services/cli/output"
)

// notRemedies are methods that messages name without sending a person to a command.
var notRemedies = map[string]string{
	"AcquireTurn":  "said to a runner, whose turn has the token",
	"CallTool":     "what a key that is limited to tools may call",
	"ListTools":    "what a key that is limited to tools may call",
	"WhoAmI":       "what a key that is limited to tools may call",
	"UpdateBoard":  "names the operations of a request; the command line makes them of a file",
	"UpdateStep":   "said to a worker, whose lease it needs",
	"PickWorkItem": "said to a model",
}

// SPEC X5.1: what the server says with names of methods, the command line says with commands.
func TestX5_MessagesGetCommands(t *testing.T) {
	r := newHarness(t)
	for _, c := range []struct {
		line string
		err  *fault.Error
		want string
	}{
		{
			"prime ghost", fault.NotFound.New(`agent "ghost" does not exist; SpawnAgent makes one`, "agent_id",
				"ghost"),
			"fix: quartet agent spawn ghost\n",
		},
		{
			"board list ghost", fault.NotFound.New(`agent "ghost" does not exist; SpawnAgent makes one`),
			"fix: quartet agent spawn ghost\n",
		},
		{"task get keeper tsk_9", fault.NotFound.New("agent keeper has no task tsk_9; ListTasks with " +
			"include_terminal shows what it has"), "fix: quartet task list keeper --all\n"},
		{
			"agent list", fault.NotFound.New(`agent "a b" does not exist; SpawnAgent makes one`, "agent_id", "a b"),
			"fix: quartet agent spawn AGENT\n",
		},
	} {
		r.planes.fail(c.err)
		s := r.run(strings.Fields(c.line)...)
		require.NotZero(t, s.code, c.line)
		require.True(t, strings.HasSuffix(s.err, c.want), "%s: %s", c.line, s.err)
		require.Contains(t, s.err, c.err.Message(), "the message stays")
	}
	s := r.run("prime", "ghost", "-o", "json")
	require.Contains(t, s.err, `"fix": "quartet agent spawn ghost"`)
	r.planes.fail(fault.NotFound.New(`session "SpawnAgent" is unknown`))
	require.NotContains(t, r.run("agent", "list").err, "fix:", "a quoted value is the caller's")
	r.planes.fail(nil)

	for message, want := range map[string][]string{
		"StartAgent or StartAgent or ResumeAgent": {
			"quartet agent start k",
			"quartet agent resume k",
		},
		"SpawnAgent StartAgent ResumeAgent StopTask ListTasks": {
			"quartet agent spawn k",
			"quartet agent start k", "quartet agent resume k",
		},
		"QuerySteps shows what it has, GetBoard too":                   {"quartet board show SESSION/BOARD"},
		"CreateWait is no remedy, nor is " + `"StopTask" or JetStream`: nil,
	} {
		require.Equal(t, want, output.RemedyCommands(message, output.RemedyValues{"AGENT": "k"}), message)
	}
}

// The warnings of an answer and the scheduler's explanation name methods as well.
func TestX5_WarningsAndExplanationsGetCommands(t *testing.T) {
	s := newHarness(t).run("wait", "create", "keeper", "CI runs")
	require.Zero(t, s.code, s.err)
	require.Contains(t, s.err, "CreateExternalTrigger\n  fix: quartet trigger create keeper DESCRIPTION\n")

	var out bytes.Buffer
	agents.WriteExplanation(output.New(&out), &schedulerv1.ExplainResponse{
		AgentId: "keeper", Verdict: &schedulerv1.Verdict{Explanation: "nothing: the agent is stopped; StartAgent " +
			"lets it go on"},
	})
	require.Contains(t, out.String(), "\nfix: quartet agent start keeper\n")
}

// Every command that is named exists, with the arguments that are named.
func TestX5_RemediesAreCommands(t *testing.T) {
	root := Command(Servers{})
	for method, usage := range output.RemedyUsages() {
		cmd, rest, err := root.Find(strings.Fields(usage))
		require.NoError(t, err, method)
		own := strings.Fields(cmd.Use)
		for i := range own {
			own[i] = strings.Trim(own[i], "[]")
		}
		require.Equal(t, own[1:], append([]string{}, rest...), "%s: %s", method, usage)
		require.Equal(t, strings.TrimSpace(usage), strings.TrimPrefix(cmd.CommandPath(), "quartet ")+suffix(rest),
			method)
	}
}

func suffix(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return " " + strings.Join(args, " ")
}

// SPEC X5.1: a method that a message names has a command, or a reason for having none. The messages are the texts of
// faults, of warnings and of the scheduler's explanations; what is said to models has the names of tools.
func TestX5_EveryMethodInAMessageHasACommand(t *testing.T) {
	methods := rpcs(t)
	unused := map[string]bool{}
	for m := range notRemedies {
		unused[m] = true
	}
	named := 0
	for _, dir := range []string{"../../pkg", "../../services"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.Contains(path, "/pkg/pb/") {
				return err
			}
			for _, text := range messages(t, path) {
				for _, word := range regexp.MustCompile(`[A-Za-z]+`).FindAllString(text, -1) {
					if !methods[word] {
						continue
					}
					named++
					delete(unused, word)
					if output.RemedyUsages()[word] == "" {
						require.Contains(t, notRemedies, word, "%s says %q: add its command to services/cli/output/remedy.go",
							path, text)
					}
				}
			}
			return nil
		}))
	}
	require.Greater(t, named, 20)
	require.Empty(t, unused, "no message names these any more")
}

// rpcs returns the names of all methods of the API that are more than one word.
func rpcs(t *testing.T) map[string]bool {
	all := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../../proto", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".proto" {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^\s*rpc ([A-Z][a-z]+[A-Z]\w+)`).FindAllStringSubmatch(string(raw),
			-1) {
			all[m[1]] = true
		}
		return err
	}))
	require.Greater(t, len(all), 90)
	return all
}

// messages returns the texts in a file that callers read: those given to package fault, and all in the files of
// explanations and of warnings.
func messages(t *testing.T, path string) []string {
	file := must.Value(parser.ParseFile(token.NewFileSet(), path, nil, 0))(t)
	var texts []string
	literals := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				texts = append(texts, must.Value(strconv.Unquote(lit.Value))(t))
			}
			return true
		})
	}
	if base := filepath.ToSlash(path); strings.HasSuffix(base, "scheduler/explain.go") ||
		strings.HasSuffix(base, "waiting/advisories.go") {
		literals(file)
		return texts
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || !ofFault(call.Fun) {
			return true
		}
		for _, arg := range call.Args {
			literals(arg)
		}
		return true
	})
	return texts
}

// ofFault reports whether a function is one of package fault, or a method of what such a function returns.
func ofFault(fun ast.Expr) bool {
	for {
		switch x := fun.(type) {
		case *ast.SelectorExpr:
			fun = x.X
		case *ast.CallExpr:
			fun = x.Fun
		case *ast.Ident:
			return x.Name == "fault"
		default:
			return false
		}
	}
}
