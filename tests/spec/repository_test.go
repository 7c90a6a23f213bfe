package spec

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// file is a text file of the repository, with its path from the root.
type file struct{ path, text string }

// files reads the repository's files with one of the extensions. It leaves out what
// is generated, what is downloaded, and what git does not keep.
func files(t *testing.T, extensions ...string) []file {
	t.Helper()
	var all []file
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case ".git", "bin", "node_modules", "pb":
				return filepath.SkipDir
			}
			return nil
		}
		for _, e := range extensions {
			if strings.HasSuffix(path, e) {
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				rel, err := filepath.Rel(root, path)
				if err != nil {
					return err
				}
				all = append(all, file{filepath.ToSlash(rel), string(b)})
			}
		}
		return nil
	}))
	require.NotEmpty(t, all)
	return all
}

var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`)

// TestLinksOfDocuments follows every relative link of the documents.
func TestLinksOfDocuments(t *testing.T) {
	for _, f := range files(t, ".md") {
		for _, m := range link.FindAllStringSubmatch(f.text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(f.path), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", f.path, m[1])
			}
		}
	}
}
