package spec

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/cli"
	"quartet/tests/dev"
)

// internalID is what a public text must not contain: an id of the specification, or
// the name of a document that outsiders do not have.
var internalID = regexp.MustCompile(
	`SPEC [A-Z]\d+|SPEC §|\([^()\n]*\b[XAWPDTBC]\d{1,2}\b[^()\n]*\)|\bS2-\d+|\bS[0-4]\b`)

func check(t *testing.T, where, text string) {
	t.Helper()
	if found := internalID.FindAllString(products.ReplaceAllString(text, ""), -1); len(found) > 0 {
		t.Errorf("%s is public and contains %q", where, found)
	}
}

// attached returns the comments of a proto file that generated documents show: those
// directly above or behind a declaration. A comment between two empty lines belongs
// to nothing, and so does one above an empty line that has an empty line before it.
func attached(text string) string {
	var out, block []string
	before := "" // the line in front of the block
	lines := strings.Split(text, "\n")
	for i, l := range append(lines, "") {
		s := strings.TrimSpace(l)
		if strings.HasPrefix(s, "//") {
			if len(block) == 0 && i > 0 {
				before = strings.TrimSpace(lines[i-1])
			}
			block = append(block, strings.TrimSpace(strings.TrimPrefix(s, "//")))
			continue
		}
		if s != "" || before != "" { // leading, or trailing on lines of its own
			out = append(out, block...)
		}
		block, before = nil, ""
		if _, behind, ok := strings.Cut(s, "//"); ok && !strings.Contains(s, `"`) {
			out = append(out, behind)
		}
	}
	return strings.Join(out, "\n")
}

func TestAttachedComments(t *testing.T) {
	text := "// detached\n\n// leading\nmessage M {\n  // one\n\n  // also leading\n  string a = 1; // trailing\n  " +
		"// trailing below\n\n}\n"
	require.Equal(t, "leading\none\nalso leading\n trailing\ntrailing below", attached(text))
}

// TestPublicDocumentsHaveNoIDs reads the OpenAPI documents, the comments of proto
// files that become documents, and the list of errors.
func TestPublicDocumentsHaveNoIDs(t *testing.T) {
	for _, f := range files(t, ".json") {
		if strings.HasPrefix(f.path, "deploy/openapi/") {
			check(t, f.path, f.text)
		}
	}
	for _, f := range files(t, ".proto") {
		check(t, f.path, attached(f.text))
	}
	for _, f := range files(t, ".md") {
		if f.path == "docs/errors.md" || f.path == "docs/configuration.md" || f.path == "docs/metrics.md" ||
			f.path == "docs/roles.md" {
			check(t, f.path, f.text)
		}
	}
	for _, e := range fault.All {
		check(t, "errors/"+string(e.Reason), fmt.Sprintf("%+v", e))
	}
}

// publicID is an id as code cites one. Texts of errors have other words in parentheses, so
// that the patterns of internalID for these do not apply to them.
var publicID = regexp.MustCompile(`SPEC [A-Z]\d+|SPEC §|\bS2-\d+`)

// TestStringsHaveNoIDs reads all strings of the program: texts of errors, results of tools
// and log entries are among them.
func TestStringsHaveNoIDs(t *testing.T) {
	n := 0
	for _, f := range files(t, ".go") {
		if strings.HasSuffix(f.path, "_test.go") || strings.HasPrefix(f.path, "tests/") ||
			strings.HasPrefix(f.path, "tools/") {
			continue
		}
		parsed := must.Value(parser.ParseFile(token.NewFileSet(), f.path, f.text, parser.SkipObjectResolution))(t)
		ast.Inspect(parsed, func(node ast.Node) bool {
			if text, ok := node.(*ast.BasicLit); ok && text.Kind == token.STRING {
				n++
				if found := publicID.FindString(text.Value); found != "" {
					t.Errorf("%s: the text %s contains %q", f.path, text.Value, found)
				}
			}
			return true
		})
	}
	require.Greater(t, n, 10_000)
}

// TestHelpHasNoIDs walks the command line.
func TestHelpHasNoIDs(t *testing.T) {
	n := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		n++
		text := c.Short + "\n" + c.Long + "\n" + c.Example
		c.Flags().VisitAll(func(f *pflag.Flag) { text += "\n" + f.Usage })
		check(t, strings.ReplaceAll(c.CommandPath(), " ", "/"), text)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(cli.Command(cli.Servers{}))
	require.Greater(t, n, 50)
}

// TestToolsHaveNoIDs reads the names, descriptions and schemas of all tools.
func TestToolsHaveNoIDs(t *testing.T) {
	b := serve(t)
	got := must.Value(b.Agents.ListTools(dev.Within(t), &agentv1.ListToolsRequest{AgentId: session}))(t)
	require.Greater(t, len(got.GetTools()), 30)
	for _, tool := range got.GetTools() {
		check(t, "tools/"+tool.GetName(), protojson.Format(tool))
	}
}
