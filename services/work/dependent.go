package work

import workv1 "quartet/pkg/pb/quartet/work/v1"

// dependent reports whether an event of the waiting plane can change what the agent's
// queue shows: an open item has a wait.
func dependent(s *State, namespace, agentID string) bool {
	a := s.agents[key{namespace, agentID}]
	if a == nil {
		return false
	}
	found := false
	a.open.each(byCreation, nil, func(it *workv1.WorkItemRecord) bool {
		found = len(it.GetWaits()) > 0
		return !found
	})
	return found
}
