package tests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/tests/proc"
)

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
