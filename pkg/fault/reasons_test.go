package fault_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
)

var rewrite = flag.Bool("rewrite", false, "rewrite docs/errors.md from the table of reasons")

const docsPath = "../../docs/errors.md"

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
	file, err := parser.ParseFile(token.NewFileSet(), "reasons.go", nil, 0)
	require.NoError(t, err)
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); ok && name.Name == "Reason" {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			out = append(out, text)
		}
		return true
	})
	return out
}

func TestDocs(t *testing.T) {
	want := errorsPage()
	if *rewrite {
		require.NoError(t, os.MkdirAll("../../docs", 0o755))
		require.NoError(t, os.WriteFile(docsPath, []byte(want), 0o644))
	}
	got, err := os.ReadFile(docsPath)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "run: go test ./pkg/fault -run TestDocs -rewrite")
}

func errorsPage() string {
	var b strings.Builder
	b.WriteString("# Errors\n\n<!-- Generated from pkg/fault/reasons.go: go test ./pkg/fault -run TestDocs -rewrite -->\n\n" +
		"Every refusal is a canonical gRPC code with `google.rpc.ErrorInfo{reason, domain: \"quartet\", metadata}`, and\n" +
		"`google.rpc.BadRequest` where fields are at fault. REST answers the same as JSON with the HTTP status below;\n" +
		"`REVISION_CONFLICT` caused by `If-Match` is 412. Tool results carry the reason in lower case.\n\n" +
		"| reason | gRPC code | HTTP | meaning |\n|---|---|---|---|\n")
	for _, e := range fault.All {
		status := fault.HTTPStatus(e.Reason.New(""))
		text := http.StatusText(status)
		if text == "" {
			text = "Client Closed Request"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %d %s | %s |\n", e.Reason, e.Code, status, text, e.Doc)
	}
	return b.String()
}
