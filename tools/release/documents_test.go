package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkPages checks that what the pages of an unpacked archive link to is in it, that no comment for a test is in them,
// and that the README needs no repository.
func checkPages(t *testing.T, dir string) {
	links := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" && d.Name() != "llms.txt" {
			return err
		}
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NotContains(t, string(page), "<!-- test", path)
		for _, part := range link.FindAllSubmatch(page, -1) {
			target, _, _ := strings.Cut(string(part[3]), "#")
			if target == "" || strings.Contains(target, ":") {
				continue
			}
			links++
			_, err := os.Stat(filepath.Join(filepath.Dir(path), target))
			require.NoError(t, err, "%s: %s", path, part[0])
		}
		return nil
	}))
	require.Greater(t, links, 100)
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	require.NoError(t, err)
	require.NotContains(t, string(text), "make build")
	require.NotContains(t, string(text), "bin/quartet dev")
	require.Contains(t, string(text), "quartet service install")
	_, err = os.Stat(filepath.Join(dir, "docs", "guides", "durable-memory.md"))
	require.NoError(t, err, "quartet mcp --help names it")
}

func TestAPageForReaders(t *testing.T) {
	has := map[string]bool{".": true, "docs": true, "docs/a.md": true, "docs/guides": true, "docs/guides/b.md": true}
	for in, want := range map[string]string{
		"see [a](../a.md#part), [up](../guides)":         "see [a](../a.md#part), [up](../guides)",
		"see [the test](../../tests/x_test.go)":          "see the test",
		"[here](#there) [out](https://example.com/x.md)": "[here](#there) [out](https://example.com/x.md)",
		"![one](../pictures/none.png)\nx":                "\nx",
		"<!-- test: run\nmkdir x\n-->\n```sh\nls\n```\n": "```sh\nls\n```\n",
	} {
		require.Equal(t, want, string(forReaders("docs/guides/b.md", "docs/guides/b.md", []byte(in), has)), in)
	}
	require.Equal(t, "[a](docs/a.md#part), [b](docs/guides), c",
		string(forReaders(readme, "README.md", []byte("[a](../../docs/a.md#part), [b](../../docs/guides), "+
			"[c](../../go.mod)"), has)))
}
