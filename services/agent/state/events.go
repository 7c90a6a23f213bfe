package state

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

// eventRows has a row for each event type of the plane. Its columns are the arguments of on.
var eventRows = plane.NewRows(
	on(foldSpawnedTwice, needed, nil, nil), // State.Apply folds the first
	on(foldControl[*agentv1.AgentPaused], unneeded, nil, nil),
	on(foldControl[*agentv1.AgentResumed], unneeded, nil, nil),
	on(foldControl[*agentv1.AgentStopped], unneeded, nil, nil),
	on(foldControl[*agentv1.AgentStarted], unneeded, nil, nil),
	on(foldDeleting, unneeded, nil, nil),
	on(foldControl[*agentv1.AgentDeleted], needed, evictDeleted, nil),
	on(foldWoken, unneeded, nil, nil),

	on(foldDelegationOpened, unneeded, nil, nil),
	on(foldDelegation[*agentv1.DelegationUpdated], unneeded, nil, nil),
	on(foldDelegation[*agentv1.DelegationCompleted], unneeded, nil, nil),
	on(foldFirstItem, unneeded, nil, nil),

	on(foldQueued, neededMessage, nil, nil),
	on(foldRequeued, unneeded, nil, nil),
	on(foldDequeued, unneeded, nil, nil),
	on(foldFinished[*agentv1.MessageProcessed], unneeded, nil, nil),
	on(foldInterjected, unneeded, nil, nil),
	on(foldFinished[*agentv1.MessageAborted], unneeded, nil, nil),
	on(foldDropped, unneeded, nil, nil),
	on(foldQuarantined, unneeded, nil, nil),
	on(foldTaskAnswered, unneeded, nil, nil),
	on(foldBrief, neededBrief, nil, nil),
	on(foldDecision, unneeded, nil, nil),

	on(foldTurnStarted, unneeded, rememberRequest, agentOfRequest),
	on(foldCallsStarted, neededOfRound, nil, nil),
	on(foldRoundSubmitted, neededRound, nil, nil),
	on(foldToolResult, neededOfRound, nil, nil),
	on(foldRoundSettled, neededOfRound, nil, nil),
	on(foldTurnCompleted, unneeded, nil, nil),
	on(foldTurnEnded[*agentv1.TurnFailed], unneeded, nil, nil),
	on(foldTurnEnded[*agentv1.TurnInterrupted], unneeded, forgetUndelivered, nil),
	on(foldTurnEnded[*agentv1.TurnAborted], unneeded, nil, nil),
)

// row is a row of eventRows; see on.
type row struct {
	fold   func(a *Agent, ev *journal.Event) error
	needed func(a *Agent, ev *journal.Event) bool
	after  func(s *State, a *Agent, ev *journal.Event)
	pages  func(s *State, ev *journal.Event, touch func(snapshot.Owner))
}

// on returns the row of an event type:
//   - fold applies an event to its agent.
//   - needed is State.Needs for events of the type.
//   - after applies an event to the rest of the state, after fold; nil: it changes only the agent.
//   - pages calls touch with the agents that an event changes beside its own; nil: there are none.
func on[P proto.Message](
	fold func(a *Agent, ev *journal.Event, p P) error,
	needed func(a *Agent, ev *journal.Event, p P) bool,
	after func(s *State, a *Agent, p P),
	pages func(s *State, ev *journal.Event, p P, touch func(snapshot.Owner)),
) plane.Row[row] {
	r := row{
		fold:   func(a *Agent, ev *journal.Event) error { return fold(a, ev, plane.PayloadOf[P](ev)) },
		needed: func(a *Agent, ev *journal.Event) bool { return needed(a, ev, plane.PayloadOf[P](ev)) },
	}
	if after != nil {
		r.after = func(s *State, a *Agent, ev *journal.Event) { after(s, a, plane.PayloadOf[P](ev)) }
	}
	if pages != nil {
		r.pages = func(s *State, ev *journal.Event, touch func(snapshot.Owner)) {
			pages(s, ev, plane.PayloadOf[P](ev), touch)
		}
	}
	return plane.RowOf[P](r)
}

// withAgent, withDelegation, withMessage and withTurn are payloads that have the record after the event.
type withAgent interface {
	proto.Message
	GetAgent() *agentv1.Agent
}

type withDelegation interface {
	proto.Message
	GetDelegation() *agentv1.Delegation
}

type withMessage interface {
	proto.Message
	GetMessage() *agentv1.Message
}

type withTurn interface {
	proto.Message
	GetTurn() *agentv1.Turn
}

func foldSpawnedTwice(_ *Agent, ev *journal.Event, _ *agentv1.AgentSpawned) error {
	return fmt.Errorf("agent: %s was spawned twice", ev.AgentID)
}

func foldControl[P withAgent](a *Agent, _ *journal.Event, p P) error {
	a.applyControl(p.GetAgent())
	return nil
}

func foldDeleting(a *Agent, _ *journal.Event, p *agentv1.AgentDeleting) error {
	a.applyControl(p.GetAgent())
	a.deletion = p
	return nil
}

func foldWoken(a *Agent, ev *journal.Event, p *agentv1.AgentWoken) error {
	a.Wake, a.wokenAt = p, ev.CreatedAt
	return nil
}

func foldDelegationOpened(a *Agent, _ *journal.Event, p *agentv1.DelegationOpened) error {
	a.Delegations = append(slices.Clone(a.Delegations), &Delegation{
		p.GetDelegation(), p.GetChild(),
		p.GetInitialMessage(), p.GetInherited(), p.GetMaxAuthority(),
	})
	return nil
}

func foldDelegation[P withDelegation](a *Agent, _ *journal.Event, p P) error {
	return a.applyDelegation(p.GetDelegation())
}

func foldFirstItem(a *Agent, _ *journal.Event, p *agentv1.FirstItemNoted) error {
	a.firstItem = p.GetWorkItemId()
	return nil
}

func foldQueued(a *Agent, ev *journal.Event, p *agentv1.MessageQueued) error {
	m := p.GetMessage()
	a.Lane.Arrive(m, ev.WalSeq)
	if m.GetTick() != nil {
		a.PendingTick = m.GetMessageId()
	} else {
		a.failedTicks = 0
		a.receiveInput(m)
	}
	return nil
}

func foldRequeued(a *Agent, _ *journal.Event, p *agentv1.MessageRequeued) error {
	a.Lane.Requeue(p.GetMessage())
	return nil
}

func foldDequeued(a *Agent, _ *journal.Event, p *agentv1.MessageDequeued) error {
	a.Lane.Take(p.GetMessage())
	return nil
}

func foldFinished[P withMessage](a *Agent, _ *journal.Event, p P) error {
	a.finishMessage(p.GetMessage())
	return nil
}

func foldInterjected(a *Agent, _ *journal.Event, p *agentv1.MessageInterjected) error {
	at := a.Lane.QueuedAt(p.GetMessage().GetMessageId())
	a.Lane.Take(p.GetMessage()) // it is finished with the turn, and queued again if the turn fails
	if a.OpenTurn != nil {
		a.Conversation.hear(p.GetMessage(), at, a.OpenTurn.Record)
		t := proto.CloneOf(a.OpenTurn.Record)
		t.InterjectedMessageIds = append(t.InterjectedMessageIds, p.GetMessage().GetMessageId())
		a.OpenTurn.Record = t
	}
	return nil
}

func foldDropped(a *Agent, _ *journal.Event, p *agentv1.MessageDropped) error {
	a.finishMessage(p.GetMessage())
	a.TickDropped = a.TickDropped || p.GetMessage().GetTick() != nil
	if p.GetMessage().GetTick().GetReason() == agentv1.TickReason_TICK_REASON_WAKE_HINT &&
		strings.HasPrefix(p.GetMessage().GetStateReason(), StaleTickReason) {
		a.Wake = nil // the tick has no purpose left; a wake that arrived since keeps it
	}
	return nil
}

func foldQuarantined(a *Agent, _ *journal.Event, p *agentv1.MessageQuarantined) error {
	a.finishMessage(p.GetMessage())
	if p.GetMessage().GetTick() != nil {
		// A tick on which every turn fails would be repeated permanently, so it
		// counts as a turn that changed nothing (SPEC D4).
		a.edit(func(r *agentv1.Agent) { r.IdleTurns++ })
		a.failedTicks++
	}
	return nil
}

func foldTaskAnswered(a *Agent, _ *journal.Event, p *agentv1.TaskAnswered) error {
	if len(a.AnsweredTasks) == keptAnsweredTasks {
		a.AnsweredTasks = slices.Delete(a.AnsweredTasks, 0, 1)
	}
	a.AnsweredTasks = append(a.AnsweredTasks, p.GetTaskId())
	return nil
}

func foldBrief(a *Agent, ev *journal.Event, p *agentv1.BriefWritten) error {
	a.Briefs = append(a.Briefs, briefRef{ev.WalSeq, p.GetBrief().GetKind(), p.GetBrief().GetWorkItemId()})
	return nil
}

func foldDecision(a *Agent, _ *journal.Event, p *agentv1.DecisionRecorded) error {
	a.Decisions.Append(p.GetDecision())
	a.Decisions.Forget(KeptDecisions)
	a.TickDropped = false
	return nil
}

func unneeded[P proto.Message](*Agent, *journal.Event, P) bool { return false }

// needed is for the events by which those who read from the beginning count agents.
func needed[P proto.Message](*Agent, *journal.Event, P) bool { return true }

func neededMessage(a *Agent, ev *journal.Event, p *agentv1.MessageQueued) bool {
	return a.Lane.QueuedAt(p.GetMessage().GetMessageId()) == ev.WalSeq || a.Conversation.indexes(ev.WalSeq)
}

func neededRound(a *Agent, ev *journal.Event, p *agentv1.RoundSubmitted) bool {
	return a.needsRound(ev.WalSeq, p.GetRound().GetWorkItemId()) || a.Conversation.indexes(ev.WalSeq) ||
		a.summarizes(ev.WalSeq)
}

func neededOfRound[P proto.Message](a *Agent, ev *journal.Event, _ P) bool {
	return a.needsRound(ev.WalSeq, ev.WorkItemID)
}

func neededBrief(a *Agent, ev *journal.Event, _ *agentv1.BriefWritten) bool {
	return ev.WalSeq >= a.Briefs[max(0, len(a.Briefs)-neededBriefs)].WalSeq
}

func evictDeleted(s *State, a *Agent, _ *agentv1.AgentDeleted) { s.evictDeleted(a) }

func rememberRequest(s *State, a *Agent, p *agentv1.TurnStarted) {
	if t := p.GetTurn(); t.GetAcquireRequestId() != "" {
		s.AcquiredTurns[RequestOf(a.Namespace, t)] = AcquiredTurn{
			plane.KeyOf(a.Namespace, a.Record.GetAgentId()), t.GetTurnId(),
		}
	}
}

func forgetUndelivered(s *State, a *Agent, p *agentv1.TurnInterrupted) {
	if p.GetTurn().GetEndReason() == agentv1.TurnEndReason_TURN_END_REASON_UNDELIVERED {
		s.forgetRequest(a, p.GetTurn())
	}
}

// agentOfRequest touches the agent of the turn that the request of a new turn got before.
func agentOfRequest(s *State, ev *journal.Event, p *agentv1.TurnStarted, touch func(snapshot.Owner)) {
	if before, ok := s.AcquiredTurns[RequestOf(ev.Namespace, p.GetTurn())]; ok {
		touch(snapshot.Owner(before.Agent))
	}
}
