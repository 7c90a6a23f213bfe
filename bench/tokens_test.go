package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/services/mcp"
)

// SPEC C5.10: the figures are sizes, the same in every run, and the set memory keeps its limit.
func TestC5_TokenFigures(t *testing.T) {
	first, err := tokens(t.Context(), t.TempDir())
	require.NoError(t, err)
	second, err := tokens(t.Context(), t.TempDir())
	require.NoError(t, err)
	require.Equal(t, first, second)
	byName := map[string]int{}
	for _, s := range first {
		byName[s.name] = s.tokens()
		t.Logf("%-60s %6d bytes %6d tokens  %s", s.name, s.bytes, s.tokens(), s.note)
	}
	require.Len(t, byName, 6)
	require.LessOrEqual(t, byName["tool schemas, tools=memory"], mcp.MemoryTokens)
	require.Less(t, byName["first calls, tools=memory"], byName["first calls, tools=all"])
	rows := []row{}
	for _, s := range first {
		rows = append(rows, row{name: nameTokens + s.name, size: &s})
	}
	require.Contains(t, document(rows, options{}), "## Tokens\n")
	require.Contains(t, document(rows, options{}), "| tool schemas, tools=memory | ")
}
