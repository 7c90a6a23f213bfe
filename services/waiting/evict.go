package waiting

import (
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/snapshot"
	"quartet/pkg/plane"
	"quartet/pkg/resident"
)

var _ snapshot.Resident = (*State)(nil)

// summary is what is in memory of an agent that is evicted.
type summary struct {
	lives   bool // it has a wait, a trigger or a timer that has not ended, which may become due
	deleted bool
}

// UseFile implements snapshot.Resident.
func (s *State) UseFile(f *resident.File) { s.agents.Use(f) }

// Evict implements snapshot.Resident.
func (s *State) Evict(most int, unused bool) (n int, more bool, err error) {
	return s.agents.Evict(most, unused)
}

// Counts implements snapshot.Resident.
func (s *State) Counts() resident.Counts { return s.agents.Counts() }

// evictedPage returns what the file keeps of an agent, which is its page. Its secrets also stay in State.tokens.
func (s *State) evictedPage(_ plane.Key, a *agentWaits) (proto.Message, summary, bool) {
	return s.pageOf(a), summary{lives: a.lives(), deleted: a.deleted}, true
}

// living calls fn with all resident agents, and the evicted ones that have something which may become due.
func (s *State) living(fn func(k plane.Key, a *agentWaits)) {
	for k, a := range s.agents.Resident() {
		fn(k, a)
	}
	for k, e := range s.agents.Summaries() {
		if e.lives {
			fn(k, s.agents.Get(k))
		}
	}
}

// deletedAgents calls fn with each deleted agent, resident or evicted, in no order.
func (s *State) deletedAgents(fn func(k plane.Key, a *agentWaits)) {
	for k, a := range s.agents.Resident() {
		if a.deleted {
			fn(k, a)
		}
	}
	for k, e := range s.agents.Summaries() {
		if e.deleted {
			fn(k, s.agents.Get(k))
		}
	}
}
