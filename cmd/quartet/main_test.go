package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// html/template calls methods by name, so a binary that links it keeps every
// exported method of every type, mostly of the providers' SDKs: 75 MB instead of
// 57 MB. The test fails when a dependency links it again.
func TestBinaryDoesNotLinkHTMLTemplates(t *testing.T) {
	raw := must.Value(os.ReadFile(filepath.Join("..", "..", "Makefile")))(t)
	tags := regexp.MustCompile(`(?m)^TAGS +\?= (.+)$`).FindStringSubmatch(string(raw))
	require.Len(t, tags, 2, "the Makefile sets the build tags of the binary")
	out := must.Value(exec.Command("go", "list", "-deps", "-tags", tags[1], ".").Output())(t)
	require.False(t, slices.Contains(strings.Fields(string(out)), "html/template"),
		"find out who imports it: go list -deps -f '{{.ImportPath}} {{.Imports}}'")
}
