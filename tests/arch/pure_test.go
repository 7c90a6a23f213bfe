package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPurePackagesStartNoGoroutine checks the packages that make test runs without the race detector because they have
// nothing that it could find: PURE in the Makefile.
func TestPurePackagesStartNoGoroutine(t *testing.T) {
	root := filepath.Join("..", "..")
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(strings.ReplaceAll(string(makefile), "\\\n", " "), "\nPURE      := ")
	require.True(t, ok)
	list, _, _ := strings.Cut(rest, "\n")
	dirs := strings.Fields(list)
	require.NotEmpty(t, dirs)
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, dir)
		for _, path := range files {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			require.NoError(t, err)
			for _, imported := range file.Imports {
				require.NotContains(t, []string{`"sync"`, `"sync/atomic"`}, imported.Path.Value, path)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				_, starts := n.(*ast.GoStmt)
				require.False(t, starts, "%s starts a goroutine, which make test looks at without the race detector; "+
					"remove the package from PURE in the Makefile", path)
				return true
			})
		}
	}
}
