package state

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/rpc"
	"quartet/pkg/tracing"
	"quartet/services/agent/lane"
)

// LeaseGeneration returns the generation of the newest lease that has ended, 0 if there was none.
// The next lease has the generation that follows it, so generations only grow (SPEC X12).
func (a *Agent) LeaseGeneration() int64 {
	if last := a.EndedTurns.Last(); last != nil {
		return last.Record.GetLeaseGeneration()
	}
	return 0
}

// TurnEvent returns an event of a turn, about the item that the turn is bound to.
func TurnEvent(t *agentv1.Turn, payload proto.Message) *journal.Event {
	return &journal.Event{AgentID: t.GetAgentId(), WorkItemID: t.GetBoundWorkItemId(), Payload: payload}
}

// RoundInMemory returns the n-th round of the agent, counted from 0 over all turns, or nil if the rounds of its turn
// are not in memory. n must be less than the number of rounds.
func (a *Agent) RoundInMemory(n int) *agentv1.Round {
	for i := len(a.Transcript.Turns) - 1; i >= 0; i-- {
		span := a.Transcript.Turns[i]
		if n < span.First {
			continue
		}
		if t := a.FindTurn(span.TurnID); t != nil && len(t.Rounds) == span.Rounds {
			return t.Rounds[n-span.First]
		}
		break
	}
	return nil
}

// CheckHolder returns PERMISSION_DENIED unless an actor may act for a turn (SPEC A6.10): with the credential
// of the turn's run, or with the credential that acquired the turn if both have the same namespace. Services
// may act for every turn.
func CheckHolder(actor journal.Actor, t *agentv1.Turn) error {
	acquired := journal.Actor{Principal: t.GetAcquiredBy(), KeyID: t.GetAcquiredByKeyId()}
	switch {
	case actor.Role == rpc.RoleService, actor.RunID != "" && actor.RunID == t.GetRunId():
		return nil
	case t.GetAcquiredFrom() == "" && actor.Caller() == acquired.Caller():
		return nil
	}
	return fault.PermissionDenied.Newf("turn %q was acquired with another credential; use that one, or the run_token "+
		"that AcquireTurn returned", t.GetTurnId()).
		With("turn_id", t.GetTurnId())
}

// HeldTurn returns the open turn that a run holds, if the actor may act for it (CheckHolder). It returns RUN_STALE if
// another run holds or held the turn, if the turn was interrupted or aborted, and if the turn is not in memory and
// the agent is deleted or being deleted; TURN_ENDED if the turn completed or failed; and NOT_FOUND if there is no
// such agent, or if the turn of an active agent is not in memory.
func (s *State) HeldTurn(actor journal.Actor, agentID, turnID, runID string) (*Turn, error) {
	a, err := s.Find(actor.Namespace, agentID)
	if err != nil {
		return nil, err
	}
	t := a.FindTurn(turnID)
	switch {
	case t == nil && !a.IsActive():
		return nil,
			StaleRun(&agentv1.Turn{TurnId: turnID, EndReason: agentv1.TurnEndReason_TURN_END_REASON_AGENT_DELETED},
				runID)
	case t == nil:
		return nil, fault.NotFound.Newf("agent %q has no turn %q", agentID, turnID).With("turn_id", turnID)
	case t.Record.GetRunId() != runID:
		return nil, StaleRun(t.Record, runID)
	case CheckHolder(actor, t.Record) != nil:
		return nil, CheckHolder(actor, t.Record)
	case t.Record.GetState() == agentv1.TurnState_TURN_STATE_INTERRUPTED,
		t.Record.GetState() == agentv1.TurnState_TURN_STATE_ABORTED:
		return nil, StaleRun(t.Record, runID)
	case t.Record.GetState() != agentv1.TurnState_TURN_STATE_OPEN:
		return nil, fault.TurnEnded.Newf("turn %q has ended (%s); acquire the next one", turnID,
			pbjson.EnumText(t.Record.GetEndReason())).
			With("turn_id", turnID).With("end_reason", pbjson.EnumText(t.Record.GetEndReason()))
	}
	return t, nil
}

// StaleRun returns RUN_STALE with the reason why a run does not hold a turn: how the turn
// ended, or, while it is open, that another run holds it.
func StaleRun(t *agentv1.Turn, runID string) error {
	why := cmp.Or(pbjson.EnumText(t.GetEndReason()), "another_run")
	return fault.RunStale.Newf("run %q does not hold turn %q (%s); stop working on it", runID, t.GetTurnId(), why).
		With("run_id", runID).With("turn_id", t.GetTurnId()).With("stale_reason", why)
}

// endTurn closes the open turn and counts whether it made progress (SPEC D9). It does nothing if t is
// not the open turn.
func (a *Agent) endTurn(t *agentv1.Turn, completed bool, walSeq uint64) {
	if a.OpenTurn == nil || a.OpenTurn.Record.GetTurnId() != t.GetTurnId() {
		return
	}
	progressed := completed && a.progressed()
	// Only a completed turn counts as having shown the wake (SPEC P2, P7).
	if completed {
		a.failedTicks = 0
		a.countProgress(t, progressed)
	} else if a.Wake == nil {
		a.Wake = a.OpenTurn.shownWake
	}
	for _, id := range t.GetInterjectedMessageIds() {
		if m := a.Lane.Get(id); m.GetState() == agentv1.MessageState_MESSAGE_STATE_INTERJECTED {
			a.finishMessage(m)
		}
	}
	a.OpenTurn.Record, a.OpenTurn.StartedCalls = t, nil
	a.OpenTurn.heardInAll = a.Conversation.len()
	a.EndedTurns.Append(a.OpenTurn)
	a.OpenTurn = nil
	a.Transcript.EndTurn(walSeq)
	a.evictRounds()
	a.edit(func(r *agentv1.Agent) {
		r.CurrentRunId, r.CurrentTurnId, r.LastTurnId = "", "", t.GetTurnId()
		switch {
		case completed && !progressed:
			r.IdleTurns++
		case completed:
			r.IdleTurns = 0
		}
	})
}

func (a *Agent) edit(change func(*agentv1.Agent)) {
	r := proto.CloneOf(a.Record)
	change(r)
	a.Record = r
}

func (t *Turn) edit(change func(*agentv1.Turn)) {
	r := proto.CloneOf(t.Record)
	change(r)
	t.Record = r
}

// round replaces one round of a turn by a copy that change has changed. It does nothing if the turn
// has no such round in memory.
func (t *Turn) round(index int32, change func(*agentv1.Round)) {
	if int(index) >= len(t.Rounds) {
		return
	}
	t.Rounds = slices.Clone(t.Rounds)
	r := proto.CloneOf(t.Rounds[index])
	change(r)
	t.Rounds[index] = r
}

func (a *Agent) open(turnID string) (*Turn, error) {
	if a.OpenTurn == nil || a.OpenTurn.Record.GetTurnId() != turnID {
		return nil, fmt.Errorf("agent: turn %q is not open", turnID)
	}
	return a.OpenTurn, nil
}

// FindTurn returns a turn of the agent, open or ended; nil if it is not in memory.
func (a *Agent) FindTurn(turnID string) *Turn {
	if a.OpenTurn != nil && a.OpenTurn.Record.GetTurnId() == turnID {
		return a.OpenTurn
	}
	for t := range a.EndedTurns.Backward() {
		if t.Record.GetTurnId() == turnID {
			return t
		}
	}
	return nil
}

// MaxInterjected is how many bytes the interjections of one turn may have in the journal (lane.JournalBytes): a round,
// and the end of a turn that failed, record them all in one command. The next turn takes the others (SPEC A9.1).
const MaxInterjected = 1 << 20

// interjections returns the queued interjections that a turn takes at its next safe point, oldest first: as many as
// fit MaxInterjected with those that the turn has. The message with the id but is not among them.
func (a *Agent) interjections(t *agentv1.Turn, but string) (taken []*agentv1.Message) {
	queued := a.Lane.Interjections()
	if len(queued) == 0 {
		return nil
	}
	room := MaxInterjected
	for _, id := range t.GetInterjectedMessageIds() {
		if m := a.Lane.Get(id); m != nil {
			room -= lane.JournalBytes(m)
		}
	}
	for _, m := range queued {
		if m.GetMessageId() == but {
			continue
		}
		if room -= lane.JournalBytes(m); room < 0 {
			break
		}
		taken = append(taken, m)
	}
	return taken
}

// Interject gives queued interjections to a turn, except for the message with the id but; those beyond
// MaxInterjected stay queued. It appends their events to events, and returns the messages.
func (a *Agent) Interject(env journal.Env, t *agentv1.Turn, but string, events []*journal.Event) ([]*journal.Event,
	[]*agentv1.Message,
) {
	var interjected []*agentv1.Message
	for _, m := range a.interjections(t, but) {
		i := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_INTERJECTED, "")
		i.TurnId = t.GetTurnId()
		events = append(events, lane.Event(i, &agentv1.MessageInterjected{Message: i}))
		interjected = append(interjected, i)
	}
	return events, interjected
}

// A turn is part of its message's trace. Its span lasts from the frame that starts it to
// the frame that ends it, across calls and restarts: the turn's record holds the span's
// id, and the span is recorded at the end.

// tracedTurns is how many of an agent's newest turns are searched for the trace of a
// message.
const tracedTurns = 16

// tracedBefore reports whether a turn about another message was part of a message's
// trace. Then the next turn begins a trace of its own that links to it; otherwise an
// agent that runs for months would have one trace.
func (a *Agent) tracedBefore(m *agentv1.Message) bool {
	if m.GetTraceparent() == "" {
		return false
	}
	n := 0
	for t := range a.EndedTurns.Backward() {
		if n++; n > tracedTurns {
			break
		}
		if t.Record.GetMessageId() != m.GetMessageId() &&
			tracing.SameTrace(t.Record.GetTraceparent(), m.GetTraceparent()) {
			return true
		}
	}
	return false
}

// keptWithRounds is how many ended turns keep their rounds in memory, for a runner that
// repeats a request and for the next context. A round may have half a megabyte, so all
// others are read back from the journal. It is less than packed.Kept.
const keptWithRounds = 2

// evictRounds drops the rounds of the turn that is no longer among the newest keptWithRounds. It is
// called after every end of a turn.
func (a *Agent) evictRounds() {
	if recent := a.EndedTurns.Recent(); len(recent) > keptWithRounds {
		t := recent[len(recent)-1-keptWithRounds]
		t.Rounds, t.Settled = nil, nil
	}
}

// WatchUpdate returns what a watcher of a run has not been sent yet: new interjections that the turn
// takes at its next safe point, or the end of the turn. It returns RUN_STALE for another run, NOT_FOUND for a turn that
// is not in memory, and the error of CheckHolder.
func (s *State) WatchUpdate(actor journal.Actor, req *agentv1.WatchTurnRequest, announced map[string]bool) (
	*agentv1.WatchTurnResponse, error,
) {
	a, err := s.Find(actor.Namespace, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	t := a.FindTurn(req.GetTurnId())
	switch {
	case t == nil:
		return nil, fault.NotFound.Newf("agent %q has no turn %q", req.GetAgentId(), req.GetTurnId()).
			With("turn_id", req.GetTurnId())
	case t.Record.GetRunId() != req.GetRunId():
		return nil, StaleRun(t.Record, req.GetRunId())
	case CheckHolder(actor, t.Record) != nil:
		return nil, CheckHolder(actor, t.Record)
	case t != a.OpenTurn:
		return &agentv1.WatchTurnResponse{Ended: t.Record}, nil
	}
	seen := &agentv1.WatchTurnResponse{}
	for _, m := range a.interjections(a.OpenTurn.Record, "") {
		if !announced[m.GetMessageId()] {
			seen.Interjections = append(seen.Interjections, m)
		}
	}
	return seen, nil
}
