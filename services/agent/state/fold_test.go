package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane/planetest"
)

func TestEveryEventIsFolded(t *testing.T) {
	planetest.FoldsEveryEvent(t, agentv1.File_quartet_agent_v1_agent_event_proto, func() *State {
		s := NewState()
		require.NoError(t,
			s.Apply(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.AgentSpawned{
				Agent: &agentv1.Agent{AgentId: "keeper"},
			}}))
		return s
	})
}
