package mcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/services/agent/tools"
)

// Each tool that changes something says whether it destroys something.
func TestEveryMutatingToolIsInCreative(t *testing.T) {
	for _, tool := range tools.Table {
		_, known := creative[tool.Name]
		require.Equal(t, tool.Mutates, known, tool.Name)
	}
}
