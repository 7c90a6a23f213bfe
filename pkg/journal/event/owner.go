package event

import "quartet/pkg/journal/framelog"

// OwnerOf returns the namespace and the agent id of the event in a line; twice "" if the event is about no agent or
// the line cannot be parsed.
func OwnerOf(line []byte) (namespace, agentID string) {
	if _, agentID = framelog.TypeOfLine(line); agentID == "" {
		return "", ""
	}
	raw, err := ParseLine(line)
	if err != nil {
		return "", ""
	}
	return raw.Namespace, raw.AgentID
}
