package guides

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

var (
	link   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced = regexp.MustCompile("(?ms)^```.*?^```$")
	code   = regexp.MustCompile("`[^`\n]*`")
	title  = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *$`)
)

// documents are the pages whose links are checked.
func documents(t *testing.T) []string {
	var out []string
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "llms.txt"} {
		out = append(out, filepath.Join(root, name))
	}
	for _, dir := range []string{"docs", "examples"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir),
			func(path string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() && d.Name() == "node_modules" {
					return filepath.SkipDir
				}
				if err == nil && filepath.Ext(path) == ".md" {
					out = append(out, path)
				}
				return err
			}))
	}
	return out
}

// anchor is the id that the heading of a Markdown page gets where it is shown.
func anchor(heading string) string {
	heading = regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(heading, "]")
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	return b.String()
}

func anchors(page string) map[string]bool {
	out := map[string]bool{}
	for _, m := range title.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		id := anchor(m[1])
		for n := id; out[n]; {
			n += "-1"
			id = n
		}
		out[id] = true
	}
	return out
}

// broken returns the relative links of a page that lead nowhere.
func broken(path string) ([]string, int, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, 0, err
	}
	text := code.ReplaceAllString(fenced.ReplaceAllString(string(raw), ""), "")
	var out []string
	n := 0
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
			continue
		}
		n++
		file, id, named := strings.Cut(m[1], "#")
		target := path
		if file != "" {
			target = filepath.Join(filepath.Dir(path), file)
		}
		info, err := os.Stat(target)
		if err != nil {
			out = append(out, m[1])
			continue
		}
		if !named {
			continue
		}
		page, err := os.ReadFile(target)
		if info.IsDir() || err != nil || !anchors(string(page))[id] {
			out = append(out, m[1])
		}
	}
	return out, n, nil
}

// TestLinksLeadSomewhere checks each relative link of the documentation, with its anchor.
func TestLinksLeadSomewhere(t *testing.T) {
	total := 0
	for _, path := range documents(t) {
		bad, n, err := broken(path)
		require.NoError(t, err)
		total += n
		if len(bad) > 0 {
			t.Errorf("%s: these links lead nowhere: %v", path, bad)
		}
	}
	require.Greater(t, total, 200)
}

// TestBrokenLinksAreFound shows that the check can fail.
func TestBrokenLinksAreFound(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "page.md")
	require.NoError(t, os.WriteFile(page, []byte("# What `a command` may reach?\n\n## Twice\n\n## "+
		"Twice\n\n[a](#what-a-command-may-reach) [b](#twice-1) [c](other.md) [d](page.md#none) "+
		"[e](https://example.com/x)\n`[f](g.md)`\n```\n# no heading\n```\n[h](#no-heading)\n"), 0o600))
	bad, n, err := broken(page)
	require.NoError(t, err)
	require.Equal(t, []string{"other.md", "page.md#none", "#no-heading"}, bad)
	require.Equal(t, 5, n)
}
