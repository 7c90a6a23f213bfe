package work

import "quartet/pkg/plane"

// dependent reports whether an event of the waiting plane can change what the agent's
// queue shows: an open item of it has a wait or an intent.
func dependent(s *State, namespace, agentID string) bool {
	a := s.ByOwner.Get(plane.KeyOf(namespace, agentID))
	return a != nil && a.waiting > 0
}
