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
)

// html/template calls methods by name. Where it is linked in, the linker keeps
// every exported method of every type, the providers' SDKs above all: 75 MB
// instead of 57. It must not come back unseen.
func TestTheBinaryLinksNoHTMLTemplates(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	require.NoError(t, err)
	tags := regexp.MustCompile(`(?m)^TAGS +\?= (.+)$`).FindStringSubmatch(string(raw))
	require.Len(t, tags, 2, "the Makefile says what the binary is built with")
	out, err := exec.Command("go", "list", "-deps", "-tags", tags[1], ".").Output()
	require.NoError(t, err)
	require.False(t, slices.Contains(strings.Fields(string(out)), "html/template"), "find out who imports it: go list -deps -f '{{.ImportPath}} {{.Imports}}'")
}
