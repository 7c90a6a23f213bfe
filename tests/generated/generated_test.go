// Package generated keeps the pages of docs/ that are made from the code equal to it, and the types of the console
// equal to the messages of the API.
// REWRITE=1 go test ./tests/generated, a part of make generate, writes them.
package generated

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/services/app"
	"quartet/services/identity"
)

func TestGeneratedDocumentsAreFresh(t *testing.T) {
	for name, document := range map[string]func() string{
		"docs/errors.md":                   errorsPage,
		"docs/roles.md":                    identity.RolesDocument,
		"docs/configuration.md":            app.ConfigurationDocument,
		"services/console/ui/src/types.ts": func() string { return consoleTypesFile(t) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("..", "..", filepath.FromSlash(name))
			if os.Getenv("REWRITE") != "" {
				require.NoError(t, os.WriteFile(path, []byte(document()), 0o644))
			}
			got, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, document(), string(got), "make generate")
		})
	}
}

// errorsPage is docs/errors.md.
func errorsPage() string {
	var b strings.Builder
	b.WriteString("# Errors\n\n<!-- Generated from pkg/fault/reasons.go by make generate. -->\n\n" +
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
