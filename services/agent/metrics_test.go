package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Models make names of tools up; metrics have none of those.
func TestToolsOfMetricsAreKnown(t *testing.T) {
	require.Equal(t, "ExecCommand", knownTool("ExecCommand"))
	require.Equal(t, "unknown", knownTool("Fly"))
}
