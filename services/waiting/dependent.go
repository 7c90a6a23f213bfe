package waiting

// dependent reports whether an event of another plane can end a wait of the agent:
// it has an active one.
func dependent(s *State, namespace, agentID string) bool {
	a := s.agents[key{namespace, agentID}]
	if a == nil {
		return false
	}
	for _, w := range a.waits.byID {
		if active(w) {
			return true
		}
	}
	return false
}
