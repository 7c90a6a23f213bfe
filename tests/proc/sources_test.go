package proc

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// A test that starts a binary runs again when a source of that changed, though it imports none of it.
func TestAResultIsNotRepeatedAfterAChange(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		// go test repeats nothing that read a file of the last two seconds
		before := time.Now().Add(-time.Hour - time.Duration(len(text))*time.Second)
		require.NoError(t, os.Chtimes(path, before, before))
	}
	sources := must.Value(os.ReadFile("sources.go"))(t)
	write("go.mod", "module example.test/m\n\ngo 1.24\n")
	write("go.sum", "")
	write("pkg/a/a.go", "package a\n")
	write("services/b/deep/b.go", "package deep\n")
	write("examples/c/c.go", "package c\n")
	write("cmd/d/main.go", "package main\n\nfunc main() {}\n")
	write("services/b/node_modules/e.js", "")
	write("tests/proc/sources.go", string(sources))
	write("tests/proc/with_test.go", "package proc\n\nimport \"testing\"\n\nfunc TestWith(t *testing.T) {\n\tif err "+
		":= DependOnSources(); err != nil {\n\t\tt.Fatal(err)\n\t}\n}\n")
	repeated := func() bool {
		cmd := exec.CommandContext(t.Context(), "go", "test", "./tests/proc")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-trimpath", "QUARTET_BINARIES=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "ok")
		return strings.Contains(string(out), "(cached)")
	}
	repeated()
	require.True(t, repeated(), "nothing changed")
	for _, name := range []string{"pkg/a/a.go", "services/b/deep/b.go", "examples/c/c.go", "cmd/d/main.go"} {
		write(name, "// changed\n"+name)
		require.False(t, repeated(), name)
		require.True(t, repeated(), name)
	}
	write("services/b/deep/new.go", "package deep\n")
	require.False(t, repeated(), "a new file")
	write("services/b/node_modules/e.js", "changed")
	require.True(t, repeated(), "a package of Node")
}

// With the digest of the binaries in the environment, a result is repeated until that changes, in whatever directory.
func TestAResultDependsOnTheDigestOfBinaries(t *testing.T) {
	dir := t.TempDir()
	sources := must.Value(os.ReadFile("sources.go"))(t)
	for name, text := range map[string]string{
		"go.mod":                "module example.test/m\n\ngo 1.24\n",
		"cmd/d/main.go":         "package main\n\nfunc main() {}\n",
		"tests/proc/sources.go": string(sources),
		"tests/proc/with_test.go": "package proc\n\nimport \"testing\"\n\nfunc TestWith(t *testing.T) {\n" +
			"\tif err := DependOnSources(); err != nil {\n\t\tt.Fatal(err)\n\t}\n}\n",
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	repeated := func(digest string) bool {
		cmd := exec.CommandContext(t.Context(), "go", "test", "./tests/proc")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-trimpath", "QUARTET_BINARIES="+digest)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.Contains(string(out), "(cached)")
	}
	first, second := rand.Text(), rand.Text()
	require.False(t, repeated(first))
	require.True(t, repeated(first))
	moved := filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.Rename(dir, moved))
	dir = moved
	require.True(t, repeated(first), "another directory")
	require.False(t, repeated(second), "other binaries")
}
