package state

import (
	"iter"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/pages"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/resident"
	"quartet/services/agent/ref"
)

var _ pages.Resident = (*State)(nil)

// summary is what is in memory of an agent that is evicted.
type summary struct {
	control   uint8 // an agentv1.Control
	lifecycle uint8 // an agentv1.Lifecycle
}

// UseFile implements pages.Resident.
func (s *State) UseFile(f *resident.File) { s.agents.Use(f) }

// Evict implements pages.Resident.
func (s *State) Evict(most int, unused bool) (n int, more bool, err error) {
	return s.agents.Evict(most, unused)
}

// Counts implements pages.Resident.
func (s *State) Counts() resident.Counts { return s.agents.Counts() }

// evictedPage returns the page of an agent that is evicted. One that has work to do stays: a message, an open turn, a child, a deletion that is not
// done, or a supervisor.
func (s *State) evictedPage(k ref.Agent, a *Agent) (proto.Message, summary, bool) {
	if a.OpenTurn != nil || a.Lane.Len() > 0 || len(a.OpenDelegations()) > 0 || a.Record.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETING ||
		a.IsActive() && a.Record.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE {
		return nil, summary{}, false
	}
	return s.pageOf(k, a), summary{control: uint8(a.Record.GetControl()), lifecycle: uint8(a.Record.GetLifecycle())}, true
}

// Resident returns the agents that are in memory, in no order: among them all that have work to do; see evictedPage.
func (s *State) Resident() iter.Seq2[ref.Agent, *Agent] { return s.agents.Resident() }

// Evicted returns whether an agent is evicted, and its control and lifecycle then.
func (s *State) Evicted(k ref.Agent) (agentv1.Control, agentv1.Lifecycle, bool) {
	e, is := s.agents.Summary(k)
	return agentv1.Control(e.control), agentv1.Lifecycle(e.lifecycle), is
}

// deleted returns the deleted agents, in no order. They may be deleted from the state meanwhile.
func (s *State) deleted() iter.Seq2[ref.Agent, *Agent] {
	return func(yield func(ref.Agent, *Agent) bool) {
		for k, a := range s.agents.Resident() {
			if a.Record.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETED && !yield(k, a) {
				return
			}
		}
		for k, e := range s.agents.Summaries() {
			if e.lifecycle == uint8(agentv1.Lifecycle_LIFECYCLE_DELETED) && !yield(k, s.agents.Get(k)) {
				return
			}
		}
	}
}
