package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"

	_ "quartet/pkg/pb/quartet/agent/v1"
	_ "quartet/pkg/pb/quartet/audit/v1"
	_ "quartet/pkg/pb/quartet/board/v1"
	_ "quartet/pkg/pb/quartet/event/v1"
	_ "quartet/pkg/pb/quartet/fleet/v1"
	_ "quartet/pkg/pb/quartet/identity/v1"
	_ "quartet/pkg/pb/quartet/scheduler/v1"
	_ "quartet/pkg/pb/quartet/task/v1"
	_ "quartet/pkg/pb/quartet/waiting/v1"
	_ "quartet/pkg/pb/quartet/work/v1"
)

// X5.1: the methods that a message names get their paths; the caller's own text, and words that are no methods, get
// none.
func TestX5_MessagesNamePaths(t *testing.T) {
	for message, want := range map[string]map[string]string{
		`agent "ghost" does not exist; SpawnAgent makes one`: {"SpawnAgent": "POST /v1/agents"},
		`agent k has no task tsk_1; ListTasks with include_terminal shows them`: {
			"ListTasks": "GET /v1/agents/{agent_id}/tasks",
		},
		`session "ListTasks" is unknown`: nil,
		`agent "SpawnAgent" does not exist; GetAgent or StartAgent, not PauseAgents`: {
			"GetAgent": "GET /v1/agents/{agent_id}", "StartAgent": "POST /v1/agents/{agent_id}:start",
		},
		`objective is required`:               nil,
		`Explain says why; JetStream is full`: nil,
		"":                                    nil,
	} {
		require.Equal(t, want, pathsNamed(message), message)
	}
	require.Len(t, pathsNamed("GetAgent SpawnAgent StopAgent StartAgent PauseAgent ResumeAgent"), maxNamed)
}
