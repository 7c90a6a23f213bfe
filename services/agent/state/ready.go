package state

import (
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

// Candidate is an agent whose turn may be taken.
type Candidate struct {
	Agent      plane.Key
	ReadySince time.Time // since when the agent is ready
	Record     *agentv1.Agent
	Message    *agentv1.Message
	QueuedAt   uint64              // wal_seq of the event that queued Message; 0 if it is not known
	Wake       *agentv1.AgentWoken // what woke the agent itself; nil if nothing did
	NewTrace   bool                // whether the turn begins a trace of its own
	// Taken is the turn of Message if it was taken before, nil otherwise; it may have ended. With it, ReadySince,
	// NewTrace and Stalled are not set.
	Taken   *agentv1.Turn
	Stalled []*agentv1.StalledItem // see Agent.Stalled
}

// Candidate returns the turn as a candidate that was taken already, bound to the item to which
// its calls are bound now, so that its context can be read again.
func (t *Turn) Candidate(k plane.Key, a *Agent) *Candidate {
	taken := proto.CloneOf(t.Record)
	taken.BoundWorkItemId = taken.GetWorkItemId()
	m := a.Lane.Get(taken.GetMessageId())
	return &Candidate{
		Agent: k, Record: a.Record, Message: m, QueuedAt: a.Lane.QueuedAt(m.GetMessageId()),
		Wake: t.shownWake, Taken: taken,
	}
}

// Shown returns the message of a candidate, nil for a nil Candidate.
func (c *Candidate) Shown() *agentv1.Message {
	if c == nil {
		return nil
	}
	return c.Message
}

// FirstReady returns the agent that has been ready longest, among those of agentIDs, or all of the
// namespace if agentIDs is empty, for which accept returns true. It returns nil if there is none.
func (s *State) FirstReady(namespace string, agentIDs []string, accept func(plane.Key) bool) *Candidate {
	try := func(a *Agent) *Candidate {
		if a == nil || !a.CanTakeTurn() || !accept(plane.Key{Namespace: namespace, ID: a.Record.GetAgentId()}) {
			return nil
		}
		return &Candidate{
			Agent: plane.Key{Namespace: namespace, ID: a.Record.GetAgentId()}, ReadySince: a.ReadySince,
			Record: a.Record, Message: a.Lane.Head(), QueuedAt: a.Lane.QueuedAt(a.Lane.Head().GetMessageId()),
			Wake: a.Wake, NewTrace: a.tracedBefore(a.Lane.Head()), Stalled: a.Stalled(),
		}
	}
	var found *Candidate
	if len(agentIDs) > 0 {
		for _, agentID := range agentIDs {
			if o := try(s.Lookup(plane.Key{Namespace: namespace, ID: agentID})); o != nil &&
				(found == nil || o.ReadySince.Before(found.ReadySince)) {
				found = o
			}
		}
		return found
	}
	if t := s.Ready[namespace]; t != nil {
		t.Ascend(func(r ReadyAgent) bool {
			found = try(s.Lookup(plane.Key{Namespace: namespace, ID: r.ID}))
			return found == nil
		})
	}
	return found
}

// maxAhead bounds ReadyAhead, which people read.
const maxAhead = 1000

// ReadyAhead returns how many agents of the namespace have been ready for longer than a, at most maxAhead. It is 0 if
// a is not ready.
func (s *State) ReadyAhead(a *Agent) (n int32) {
	t := s.Ready[a.Namespace]
	if t == nil || a.ReadySince.IsZero() {
		return 0
	}
	t.Ascend(func(r ReadyAgent) bool {
		if r.ID == a.Record.GetAgentId() || n == maxAhead {
			return false
		}
		n++
		return true
	})
	return n
}

// ReadyAgent is an entry of State.Ready: an agent, ordered by the time since when it is ready.
type ReadyAgent struct {
	since time.Time
	ID    string
}

// before is the order of State.Ready: by the time since when agents are ready, then by id.
func (r ReadyAgent) before(o ReadyAgent) bool {
	if !r.since.Equal(o.since) {
		return r.since.Before(o.since)
	}
	return r.ID < o.ID
}

// CanTakeTurn reports whether a runner may start a turn of the agent now.
func (a *Agent) CanTakeTurn() bool {
	return a.Record.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_ACTIVE &&
		a.Record.GetControl() == agentv1.Control_CONTROL_RUNNING &&
		a.OpenTurn == nil && a.Lane.Head() != nil
}

// IsIdle reports whether the agent could take a turn but has no message.
func (a *Agent) IsIdle() bool {
	return a.IsActive() && a.Record.GetControl() == agentv1.Control_CONTROL_RUNNING && a.OpenTurn == nil &&
		a.Lane.Head() == nil
}

func (s *State) removeReady(a *Agent) {
	if a.ReadySince.IsZero() {
		return
	}
	s.Ready[a.Namespace].Delete(ReadyAgent{a.ReadySince, a.Record.GetAgentId()})
}

func (s *State) updateReady(a *Agent, now time.Time) {
	if !a.CanTakeTurn() {
		a.ReadySince = time.Time{}
		return
	}
	if a.ReadySince.IsZero() {
		a.ReadySince = now
	}
	s.Ready[a.Namespace].ReplaceOrInsert(ReadyAgent{a.ReadySince, a.Record.GetAgentId()})
}
