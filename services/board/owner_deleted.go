package board

import (
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

// follows returns the events of the agent plane that this plane reacts to. A stopped or paused
// orchestrator keeps its boards, and their workers continue (SPEC A8); the boards of a deleted
// one are cancelled.
func follows() []plane.Followed {
	return []plane.Followed{{
		Plane: "agent", Types: []string{"agent_deleting"},
		Registry: journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto),
	}}
}
