package waiting

import (
	"iter"

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

// living returns all resident agents, and the evicted ones that have something which may become due.
func (s *State) living() iter.Seq2[plane.Key, *agentWaits] {
	return s.agents.Where(func(*agentWaits) bool { return true }, func(e summary) bool { return e.lives })
}

// deletedAgents returns the deleted agents, in no order.
func (s *State) deletedAgents() iter.Seq2[plane.Key, *agentWaits] {
	return s.agents.Where(func(a *agentWaits) bool { return a.deleted }, func(e summary) bool { return e.deleted })
}
