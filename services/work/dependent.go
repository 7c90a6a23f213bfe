package work

// dependent reports whether an event of the waiting plane can change what the agent's
// queue shows: an open item has a wait.
func dependent(s *State, namespace, agentID string) bool {
	a := s.agents[key{namespace, agentID}]
	return a != nil && a.waiting > 0
}
