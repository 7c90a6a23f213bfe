package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestYearsTable: each history and each figure of snapshots has its line.
func TestYearsTable(t *testing.T) {
	text := yearsTable([]rested{
		{
			name: "10 updates", target: "little", rate: 5, disk: 3e6, events: 1e6, rss: 40e6, loaded: 30e6, later: 20e6,
			ready: 1234 * time.Millisecond,
		},
		{name: "20 sleepers", then: "message to turn held p50 1ms"},
	}, []row{{name: nameSnapshot, note: "4 KB of 8 KB"}})
	require.Contains(t, text, "| 10 updates | 5/s | 3 MB | 1 MB | 40 MB | 30 MB | 20 MB | 1.23s | little |\n")
	require.Contains(t, text, "- 20 sleepers, afterwards: message to turn held p50 1ms\n")
	require.Contains(t, text, "- a snapshot after one in 1 000 agents changed: 4 KB of 8 KB\n")
	require.NotContains(t, text, "- 10 updates")
}
