package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestD6_AChosenReminderIsACandidate has more blocked items than a queue shows, of which one
// that it does not show is chosen for its reminder.
func TestD6_AChosenReminderIsACandidate(t *testing.T) {
	f := facts(isBlocked(item("shown", blocked)), recheckIn(item("due", blocked), -time.Second), recheckIn(item("later", blocked), time.Hour))
	chosen := map[string]bool{}
	for _, c := range candidates(Plan(f), f) {
		chosen[c.GetWorkItemId()] = c.GetChosen()
	}
	require.Equal(t, map[string]bool{"shown": false, "due": true}, chosen)
}
