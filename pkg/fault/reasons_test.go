package fault_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/must"
)

func TestX5_EveryReasonIsDocumentedOnce(t *testing.T) {
	declared := declaredReasons(t)
	seen := map[fault.Reason]bool{}
	for _, e := range fault.All {
		require.False(t, seen[e.Reason], "%s is listed twice", e.Reason)
		seen[e.Reason] = true
		require.Regexp(t, `^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$`, string(e.Reason))
		require.NotEqual(t, codes.OK, e.Code, e.Reason)
		require.Regexp(t, `^\S.*\.$`, e.Doc, e.Reason)
		require.Equal(t, e.Code, e.Reason.New("m").Code())
		require.Contains(t, declared, string(e.Reason))
	}
	require.Len(t, fault.All, len(declared), "a declared reason is missing from the table")
	require.Equal(t, codes.Internal, fault.Reason("NOT_LISTED").Code())
}

// declaredReasons reads the constants from the source, so that a constant
// without a table row fails here and not in a client.
func declaredReasons(t *testing.T) []string {
	file := must.Value(parser.ParseFile(token.NewFileSet(), "reasons.go", nil, 0))(t)
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); ok && name.Name == "Reason" {
			out = append(out, must.Value(strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value))(t))
		}
		return true
	})
	return out
}
