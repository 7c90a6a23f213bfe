package archive

import (
	"bytes"
	"maps"
	"slices"

	"quartet/pkg/journal/event"
	archivev1 "quartet/pkg/pb/quartet/archive/v1"
)

// maxOwners is how many agents an index lists at most, so that it stays small beside its segment.
const maxOwners = 1 << 15

// owners are the agents of which a segment has lines, by namespace.
type owners struct {
	agents map[string]map[string]struct{}
	n      int
}

// add adds the agents of the lines of a frame.
func (o *owners) add(body []byte) {
	for line := range bytes.Lines(body) {
		namespace, agentID := event.OwnerOf(line)
		if agentID == "" || o.n > maxOwners {
			continue
		}
		known := o.agents[namespace]
		if known == nil {
			if o.agents == nil {
				o.agents = map[string]map[string]struct{}{}
			}
			known = map[string]struct{}{}
			o.agents[namespace] = known
		}
		if _, listed := known[agentID]; !listed {
			known[agentID] = struct{}{}
			o.n++
		}
	}
}

// list lists the agents in an index, unless there are more than maxOwners.
func (o *owners) list(x *archivev1.Index) {
	if o.n > maxOwners {
		return
	}
	x.ListsOwners = true
	for _, namespace := range slices.Sorted(maps.Keys(o.agents)) {
		x.Owners = append(x.Owners, &archivev1.Owners{
			Namespace: namespace,
			AgentIds:  slices.Sorted(maps.Keys(o.agents[namespace])),
		})
	}
}

// anyOwner reports whether an index lists an agent for which matches returns true.
func anyOwner(x *archivev1.Index, matches func(namespace, agentID string) bool) bool {
	for _, owners := range x.GetOwners() {
		for _, id := range owners.GetAgentIds() {
			if matches(owners.GetNamespace(), id) {
				return true
			}
		}
	}
	return false
}
