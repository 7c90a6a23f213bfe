package guides

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/tests/proc"
)

// reasons are why a block is not run here. A block that names another test, or a line of .ci/run, is run there.
var reasons = map[string]string{
	"docker":   "needs Docker and images",
	"machines": "is about several machines, or a name in DNS",
	"model":    "needs a provider of models and its key",
	"registry": "fetches packages",
	"host":     "changes the machine: needs root, or a service manager",
	"program":  "needs a program that is not in Debian",
	"by":       "is run elsewhere",
}

// mostSkipped is how many blocks may be skipped in all pages, without those that are run elsewhere. It is there to be
// noticed: a block that can be run is better than one more here.
const mostSkipped = 30

func pages(t *testing.T) []string {
	guides := must.Value(filepath.Glob(filepath.Join(root, "docs", "guides", "*.md")))(t)
	require.Greater(t, len(guides), 12)
	return append([]string{filepath.Join(root, "README.md"), filepath.Join(root, "docs", "quickstart.md")}, guides...)
}

// TestCommandsOfThePagesRun runs each page as somebody does who reads it from its beginning.
func TestCommandsOfThePagesRun(t *testing.T) {
	binary := quartet(t)
	require.NoError(t, proc.NodePackages(t.Context(), filepath.Join(root, "examples", "typescript-runner")))
	for _, path := range pages(t) {
		t.Run(strings.TrimPrefix(path, root+"/"), func(t *testing.T) {
			t.Parallel()
			blocks := must.Value(parse(path))(t)
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			var s *shell
			for _, b := range blocks {
				if b.skip != "" {
					continue
				}
				if s == nil {
					s = newShell(ctx, t, binary)
				}
				if b.file != "" {
					to := filepath.Join(s.dir, b.file)
					require.NoError(t, os.WriteFile(to, []byte(b.text), 0o600))
					if modules := filepath.Join(filepath.Dir(to), "node_modules"); filepath.Ext(to) == ".mts" {
						// As npm has installed them; in the directory of the page they are already.
						_ = os.Symlink(filepath.Join(s.dir, "node_modules"), modules)
					}
					continue
				}
				out, err := s.run(b)
				require.NoError(t, err, "%s:%d\n%s\nwrote:\n%s", path, b.line, b.text, out)
				for _, line := range b.shows {
					s.shows(t, b, line)
				}
			}
			if s != nil {
				require.Empty(t, s.ended(), "%s: a program in a terminal of its own failed", path)
			}
		})
	}
}

// TestSkippedBlocksSayWhy counts what is not run, and finds the places where it is said to be run.
func TestSkippedBlocksSayWhy(t *testing.T) {
	ci := must.Value(os.ReadFile(filepath.Join(root, ".ci", "run")))(t)
	ran, skipped := 0, map[string]int{}
	for _, path := range pages(t) {
		blocks := must.Value(parse(path))(t)
		for _, b := range blocks {
			if b.skip == "" {
				if b.commands() && !b.hidden {
					ran++
				}
				continue
			}
			reason, place, _ := strings.Cut(b.skip, " ")
			require.Contains(t, reasons, reason, "%s:%d: a block that is not run needs one of these reasons", path,
				b.line)
			skipped[reason]++
			switch {
			case reason != "by":
				require.Empty(t, place, "%s:%d: %q has no more to say", path, b.line, reason)
			case place == ".ci/run":
				for _, line := range strings.Split(strings.TrimSpace(b.text), "\n") {
					command, _, _ := strings.Cut(line, "#")
					require.Contains(t, string(ci), strings.TrimSpace(command), "%s:%d: .ci/run does not run it", path,
						b.line)
				}
			default:
				require.Regexp(t, `^Test\w+$`, place, "%s:%d: by a test or .ci/run", path, b.line)
				found, err := exec.Command("git", "-C", root, "grep", "-lw", "func "+place, "--", "*_test.go").
					CombinedOutput()
				require.NoError(t, err, "%s:%d: there is no test %s: %s", path, b.line, place, found)
			}
		}
	}
	total := 0
	for reason, n := range skipped {
		if reason != "by" {
			total += n
		}
	}
	t.Logf("%d blocks are run, %d elsewhere, %d are not: %v", ran, skipped["by"], total, skipped)
	require.LessOrEqual(t, total, mostSkipped, "%v", skipped)
	require.Greater(t, ran, 2*total, "most blocks are to be run")
}

// TestParseRefuses pages whose blocks nobody would run.
func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ page, says string }{
		"unknown language":  {"```bash\nls\n```\n", `:1: blocks of "bash" are neither`},
		"output of nothing": {"text\n```\nls\n```\n", ":2: a block without a language"},
		"second output":     {"```sh\nls\n```\n```\na\n```\n```\nb\n```\n", ":7: a block without a language"},
		"unknown directive": {"<!-- test: ignore -->\n", "is no comment for this test"},
		"skip without why":  {"<!-- test: skip -->\n", "too much or too little"},
		"run of nothing":    {"<!-- test: run -->\n", "has no commands"},
		"open comment":      {"<!-- test: run\nls\n", "is no comment for this test"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "page.md")
			require.NoError(t, os.WriteFile(path, []byte(c.page), 0o600))
			must.Fail(parse(path))(t, c.says)
		})
	}
}

// TestAFailingBlockFails shows that the test can fail: by a command in the middle of a block, by a code, by a line
// that is not in the output, and by a program that ends.
func TestAFailingBlockFails(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := newShell(ctx, t, quartet(t))
	out := must.Value(s.run(block{text: "echo before\nexport WORD=kept\n"}))(t)
	require.Equal(t, "before\n", out)
	out, err := s.run(block{text: "echo $WORD; false || true\n(exit 3)\n", exit: "3"})
	require.NoError(t, err, "a block sees what an earlier one has exported")
	require.Equal(t, "kept\n", out)
	must.Fail(s.run(block{text: "quartet agent get nobody; echo after\n"}))(t, "failed 5: quartet agent get nobody")
	require.NotRegexp(t, loosely("one … three"), "one\nthree")
	require.Regexp(t, loosely("one … three"), "x one   two three")

	s = newShell(ctx, t, quartet(t))
	require.Error(t, must.Err(s.run(block{text: "true\n", exit: "3"})))
	s = newShell(ctx, t, quartet(t))
	require.Error(t, must.Err(s.run(block{text: "quartet dev --no-such-flag\n", terminal: true})))
	require.Len(t, s.ended(), 1)
}
