package state

import (
	"iter"
	"time"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/snapshot"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/resident"
)

var _ snapshot.Resident = (*State)(nil)

// summary is what is in memory of an agent that is evicted.
type summary struct {
	control   uint8 // an agentv1.Control
	lifecycle uint8 // an agentv1.Lifecycle
	pending   bool  // see Agent.DecisionPending
	queued    int32 // messages
	oldest    int64 // see Load.Oldest, in Unix microseconds; 0: there is none
}

// UseFile implements snapshot.Resident: agents are evicted to f; nil: they stay in memory.
func (s *State) UseFile(f *resident.File) { s.agents.Use(f) }

// Evict implements snapshot.Resident: it evicts agents to the file, except those that evictedPage keeps in memory.
func (s *State) Evict(most int, unused bool) (n int, more bool, err error) {
	return s.agents.Evict(most, unused)
}

// Counts implements snapshot.Resident: it returns how many agents are in memory and how many are evicted.
func (s *State) Counts() resident.Counts { return s.agents.Counts() }

// evictedPage returns the page and the summary with which an agent is evicted. It returns false if the agent must
// stay in memory: with an open turn, an open delegation, a deletion that has not ended, or as an active child. An
// agent that can take a turn may be evicted, since State.Ready names it.
func (s *State) evictedPage(k plane.Key, a *Agent) (proto.Message, summary, bool) {
	if a.OpenTurn != nil || len(a.OpenDelegations()) > 0 ||
		a.Record.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETING ||
		a.IsActive() && a.Record.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE {
		return nil, summary{}, false
	}
	l := a.load()
	left := summary{
		control: uint8(l.Control), lifecycle: uint8(a.Record.GetLifecycle()), pending: a.DecisionPending(),
		queued: int32(l.Queued),
	}
	if !l.Oldest.IsZero() {
		left.oldest = l.Oldest.UnixMicro()
	}
	return s.pageOf(k, a), left, true
}

// Resident returns the agents that are in memory, in no order: at least those that evictedPage does not let go.
func (s *State) Resident() iter.Seq2[plane.Key, *Agent] { return s.agents.Resident() }

// Evicted returns the lifecycle of an agent that is evicted, and false if it is not.
func (s *State) Evicted(k plane.Key) (agentv1.Lifecycle, bool) {
	e, is := s.agents.Summary(k)
	return agentv1.Lifecycle(e.lifecycle), is
}

// DecisionPending reports whether the agent may need a decision, even if its work does not call for a turn. It is false
// for an agent that is not active, is paused or stopped, has a turn or a message, or was decided to be idle and has had
// no turn and no wake since.
func (a *Agent) DecisionPending() bool {
	control := a.Record.GetControl()
	if !a.IsActive() || control == agentv1.Control_CONTROL_PAUSED || control == agentv1.Control_CONTROL_STOPPED ||
		a.OpenTurn != nil || a.Lane.Len() > 0 {
		return false
	}
	last := a.Decisions.Last()
	return a.Wake != nil || last.GetAction() != agentv1.DecisionAction_DECISION_ACTION_IDLE ||
		last.GetLastTurnId() != a.Record.GetLastTurnId()
}

// DecisionPending is Agent.DecisionPending for an agent that exists. It does not load an evicted agent from the file.
func (s *State) DecisionPending(k plane.Key) bool {
	if e, evicted := s.agents.Summary(k); evicted {
		return e.pending
	}
	return s.agents.Peek(k).DecisionPending()
}

// Load is what an agent has to do.
type Load struct {
	Control agentv1.Control
	Active  bool // its lifecycle is active
	Running bool // it has an open turn
	Queued  int  // messages
	// Oldest is the time of the oldest message that is the first of its band, zero if there is none.
	Oldest time.Time
}

func (a *Agent) load() Load {
	l := Load{Control: a.Record.GetControl(), Active: a.IsActive(), Running: a.OpenTurn != nil, Queued: a.Lane.Len()}
	for _, head := range a.Lane.Heads() {
		if at := head.GetCreatedAt().AsTime(); l.Oldest.IsZero() || at.Before(l.Oldest) {
			l.Oldest = at
		}
	}
	return l
}

// LoadOf returns the Load of an agent that exists. It does not load an evicted agent from the file.
func (s *State) LoadOf(k plane.Key) Load {
	e, evicted := s.agents.Summary(k)
	if !evicted {
		return s.agents.Peek(k).load()
	}
	l := Load{
		Control: agentv1.Control(e.control), Active: e.lifecycle == uint8(agentv1.Lifecycle_LIFECYCLE_ACTIVE),
		Queued: int(e.queued),
	}
	if e.oldest != 0 {
		l.Oldest = time.UnixMicro(e.oldest)
	}
	return l
}

// deleted returns the deleted agents, in no order. The body of the loop may delete them from the state.
func (s *State) deleted() iter.Seq2[plane.Key, *Agent] {
	const deleted = agentv1.Lifecycle_LIFECYCLE_DELETED
	return s.agents.Where(func(a *Agent) bool { return a.Record.GetLifecycle() == deleted },
		func(e summary) bool { return e.lifecycle == uint8(deleted) })
}
