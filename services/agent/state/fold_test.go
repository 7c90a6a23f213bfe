package state

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// Every event type of the plane is folded: one that is added to the proto file and not to
// Apply would stop the partition at its first event.
func TestEveryEventIsFolded(t *testing.T) {
	registry := journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto)
	require.NotEmpty(t, registry.Types())
	for _, eventType := range registry.Types() {
		payload, err := registry.New(eventType)
		require.NoError(t, err)
		s := NewState()
		spawned := &journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.AgentSpawned{
			Agent: &agentv1.Agent{AgentId: "keeper"},
		}}
		if eventType != "agent_spawned" {
			require.NoError(t, s.Apply(spawned))
		}
		err = s.Apply(&journal.Event{
			Namespace: "acme", AgentID: "keeper", Type: eventType, Payload: payload, CreatedAt: time.Unix(1, 0),
		})
		if err != nil { // an empty round belongs to no open turn, and an empty delegation is not open
			require.NotContains(t, err.Error(), "unknown event", eventType)
		}
	}
}

// An event that Apply does not know is an error that names it.
func TestAnUnknownEventIsAnError(t *testing.T) {
	s := NewState()
	require.NoError(t,
		s.Apply(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.AgentSpawned{
			Agent: &agentv1.Agent{AgentId: "keeper"},
		}}))
	require.ErrorContains(t, s.Apply(&journal.Event{
		Namespace: "acme", AgentID: "keeper", Type: "task_completed", Payload: &taskv1.TaskCompleted{},
	}), "unknown event task_completed")
}
