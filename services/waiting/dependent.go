package waiting

import "quartet/pkg/plane"

// dependent reports whether an event of another plane can end a wait of the agent:
// it has an active one.
func dependent(s *State, namespace, agentID string) bool {
	a := s.agents.Get(plane.KeyOf(namespace, agentID))
	return a != nil && len(a.published) > 0 // published has every active wait
}
