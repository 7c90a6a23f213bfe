package tests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/tests/proc"
)

// shown are the commands of one fenced block, and what the block after it shows of
// their output.
type shown struct {
	commands string
	lines    []string
}

var fence = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

// section returns the blocks of a section of README.md: commands in blocks of sh, and
// output in the blocks without a language that follow them.
func section(t *testing.T, title string) []shown {
	raw, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(raw), "\n## "+title+"\n")
	require.True(t, found, title)
	text, _, _ = strings.Cut(text, "\n## ")
	var out []shown
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		switch {
		case m[1] == "sh":
			out = append(out, shown{commands: m[2]})
		case m[1] == "" && len(out) > 0 && out[len(out)-1].lines == nil:
			out[len(out)-1].lines = strings.Split(strings.TrimRight(m[2], "\n"), "\n")
		default:
			t.Fatalf("a block of %q that follows no commands:\n%s", m[1], m[2])
		}
	}
	return out
}

// TestTheReadmeCanBeRun as far as that can be told without a deployment: the
// blocks of commands are good for the shell, and each command of ours is one. With
// a deployment, they are run: see TestTheReadmeIsRun.
func TestTheReadmeCanBeRun(t *testing.T) {
	blocks := section(t, "Run it for real")
	require.GreaterOrEqual(t, len(blocks), 5)
	ours := regexp.MustCompile(`bin/quartet ([a-z]+)(?: ([a-z]+))?`)
	bin, known := binary(t), 0
	for _, b := range blocks {
		cmd := exec.Command("bash", "-n")
		cmd.Stdin = strings.NewReader(b.commands)
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", said, b.commands)
		for _, m := range ours.FindAllStringSubmatch(b.commands, -1) {
			args := []string{m[1], "--help"}
			if m[2] != "" && m[1] != "backup" && m[1] != "restore" {
				args = []string{m[1], m[2], "--help"}
			}
			said, err := exec.Command(bin, args...).CombinedOutput()
			require.NoError(t, err, "%s: %s", m[0], said)
			known++
		}
	}
	require.GreaterOrEqual(t, known, 5)
}

// TestTheDemoFailsWithAPackage runs the demo on a module with one package whose tests
// pass and one whose tests fail. The demo names the failing one and exits with an error,
// so that a build which runs it fails too.
func TestTheDemoFailsWithAPackage(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	dir := t.TempDir()
	quartet := must.Value(proc.Build(dir, "quartet/cmd/quartet", "quartet"))(t)
	keeper := must.Value(proc.Build(dir, "quartet/examples/release-keeper", "release-keeper"))(t)

	run := func(files map[string]string) (string, error) {
		repo := t.TempDir()
		for name, text := range files {
			path := filepath.Join(repo, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, keeper, "--quartet", quartet, "--repo", repo, "--exit", "--no-kill").
			CombinedOutput()
		return string(out), err
	}
	test := func(pkg, body string) string {
		return "package " + pkg + "\n\nimport \"testing\"\n\nfunc TestIt(t *testing.T) { " + body + " }\n"
	}
	files := map[string]string{"go.mod": "module example\n\ngo 1.24\n", "good/good_test.go": test("good", "t.Log(1)")}
	out, err := run(files)
	require.NoError(t, err, out)

	files["bad/bad_test.go"] = test("bad", `t.Fatal("broken")`)
	out, err = run(files)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, out)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, out, "1 of 2 packages failed:\n  example/bad: vet clean; go test FAILED (TestIt)")
}
