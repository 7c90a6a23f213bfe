package state

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

// Apply folds one event into the state. An event that it does not know is an error.
func (s *State) Apply(ev *journal.Event) error {
	k := plane.Key{Namespace: ev.Namespace, ID: ev.AgentID}
	a := s.agents.Edit(k)
	if p, ok := ev.Payload.(*agentv1.AgentSpawned); ok {
		if a != nil {
			return fmt.Errorf("agent: %s was spawned twice", ev.AgentID)
		}
		s.addAgent(k, &Agent{
			Namespace: ev.Namespace, Record: p.GetAgent(), FactsRevision: 1,
			InheritedContext: p.GetInherited(),
		})
		return nil
	}
	if a == nil {
		return fmt.Errorf("agent: %s for unknown agent %q", ev.Type, ev.AgentID)
	}
	s.removeReady(a)
	if err := a.apply(ev); err != nil {
		return err
	}
	if _, ok := ev.Payload.(*agentv1.AgentDeleted); ok {
		s.evictDeleted(a)
	}
	if p, ok := ev.Payload.(*agentv1.TurnStarted); ok && p.GetTurn().GetAcquireRequestId() != "" {
		s.AcquiredTurns[RequestOf(a.Namespace, p.GetTurn())] = AcquiredTurn{k, p.GetTurn().GetTurnId()}
	}
	if p, ok := ev.Payload.(*agentv1.TurnInterrupted); ok &&
		p.GetTurn().GetEndReason() == agentv1.TurnEndReason_TURN_END_REASON_UNDELIVERED {
		s.forgetRequest(a, p.GetTurn())
	}
	for _, t := range a.EndedTurns.Forget(KeptTurns) {
		s.forgetRequest(a, t.Record)
	}
	a.FactsRevision++
	s.updateReady(a, ev.CreatedAt)
	return nil
}

// forgetRequest removes the request that got a turn from AcquiredTurns, unless the request has got
// another turn since.
func (s *State) forgetRequest(a *Agent, t *agentv1.Turn) {
	if of := RequestOf(a.Namespace, t); s.AcquiredTurns[of].TurnID == t.GetTurnId() {
		delete(s.AcquiredTurns, of)
	}
}

// TurnRequest identifies a request of AcquireTurn. The namespace is that of the
// caller's credential, which differs from the agent's where a runner serves
// every namespace.
type TurnRequest struct{ Namespace, Caller, RequestID string }

// RequestOf returns the request that acquired a turn. Its namespace is that of the
// caller, which is the agent's own unless a shared runner acquired the turn.
func RequestOf(namespace string, t *agentv1.Turn) TurnRequest {
	if t.GetAcquiredFrom() != "" {
		namespace = t.GetAcquiredFrom()
	}
	return TurnRequest{Namespace: namespace, Caller: journal.Actor{
		Principal: t.GetAcquiredBy(),
		KeyID:     t.GetAcquiredByKeyId(),
	}.Caller(), RequestID: t.GetAcquireRequestId()}
}

func (a *Agent) apply(ev *journal.Event) error {
	switch p := ev.Payload.(type) {
	case *agentv1.MessageQueued:
		m := p.GetMessage()
		a.Lane.Arrive(m, ev.WalSeq)
		if m.GetTick() != nil {
			a.PendingTick = m.GetMessageId()
		} else {
			a.failedTicks = 0
			a.receiveInput(m)
		}
	case *agentv1.MessageRequeued:
		a.Lane.Requeue(p.GetMessage())
	case *agentv1.MessageDequeued:
		a.Lane.Take(p.GetMessage())
	case *agentv1.MessageProcessed:
		a.finishMessage(p.GetMessage())
	case *agentv1.MessageInterjected:
		at := a.Lane.QueuedAt(p.GetMessage().GetMessageId())
		a.Lane.Take(p.GetMessage()) // it is finished with the turn, and queued again if the turn fails
		if a.OpenTurn != nil {
			a.Conversation.hear(p.GetMessage(), at, a.OpenTurn.Record)
			t := proto.CloneOf(a.OpenTurn.Record)
			t.InterjectedMessageIds = append(t.InterjectedMessageIds, p.GetMessage().GetMessageId())
			a.OpenTurn.Record = t
		}
	case *agentv1.MessageAborted:
		a.finishMessage(p.GetMessage())
	case *agentv1.BriefWritten:
		a.Briefs = append(a.Briefs, briefRef{ev.WalSeq, p.GetBrief().GetKind(), p.GetBrief().GetWorkItemId()})
	case *agentv1.TaskAnswered:
		if len(a.AnsweredTasks) == keptAnsweredTasks {
			a.AnsweredTasks = slices.Delete(a.AnsweredTasks, 0, 1)
		}
		a.AnsweredTasks = append(a.AnsweredTasks, p.GetTaskId())
	case *agentv1.MessageDropped:
		a.finishMessage(p.GetMessage())
		a.TickDropped = a.TickDropped || p.GetMessage().GetTick() != nil
		if p.GetMessage().GetTick().GetReason() == agentv1.TickReason_TICK_REASON_WAKE_HINT &&
			strings.HasPrefix(p.GetMessage().GetStateReason(), StaleTickReason) {
			a.Wake = nil // the tick has no purpose left; a wake that arrived since keeps it
		}
	case *agentv1.MessageQuarantined:
		a.finishMessage(p.GetMessage())
		if p.GetMessage().GetTick() != nil {
			// A tick on which every turn fails would be repeated permanently, so it
			// counts as a turn that changed nothing (SPEC D4).
			a.edit(func(r *agentv1.Agent) { r.IdleTurns++ })
			a.failedTicks++
		}
	case *agentv1.AgentWoken:
		a.Wake, a.wokenAt = p, ev.CreatedAt
	case *agentv1.AgentPaused:
		a.applyControl(p.GetAgent())
	case *agentv1.AgentResumed:
		a.applyControl(p.GetAgent())
	case *agentv1.AgentStopped:
		a.applyControl(p.GetAgent())
	case *agentv1.AgentStarted:
		a.applyControl(p.GetAgent())
	case *agentv1.AgentDeleting:
		a.applyControl(p.GetAgent())
		a.deletion = p
	case *agentv1.AgentDeleted:
		a.applyControl(p.GetAgent())
	case *agentv1.DelegationOpened:
		a.Delegations = append(slices.Clone(a.Delegations), &Delegation{
			p.GetDelegation(), p.GetChild(),
			p.GetInitialMessage(), p.GetInherited(), p.GetMaxAuthority(),
		})
	case *agentv1.DelegationUpdated:
		return a.applyDelegation(p.GetDelegation())
	case *agentv1.DelegationCompleted:
		return a.applyDelegation(p.GetDelegation())
	case *agentv1.FirstItemNoted:
		a.firstItem = p.GetWorkItemId()
	case *agentv1.DecisionRecorded:
		a.Decisions.Append(p.GetDecision())
		a.Decisions.Forget(KeptDecisions)
		a.TickDropped = false
	default:
		return a.applyTurn(ev)
	}
	return nil
}

func (a *Agent) applyTurn(ev *journal.Event) error {
	switch p := ev.Payload.(type) {
	case *agentv1.TurnStarted:
		a.OpenTurn = &Turn{Record: p.GetTurn()}
		a.OpenTurn.heardBefore = a.Conversation.hear(a.Lane.Get(p.GetTurn().GetMessageId()),
			a.Lane.QueuedAt(p.GetTurn().GetMessageId()), p.GetTurn())
		a.Transcript.BeginTurn(p.GetTurn().GetTurnId())
		// The turn's context shows the wake. If the turn fails, the wake is pending
		// again.
		a.OpenTurn.shownWake, a.Wake = a.Wake, nil
		a.edit(func(r *agentv1.Agent) {
			r.CurrentRunId, r.CurrentTurnId = p.GetTurn().GetRunId(), p.GetTurn().GetTurnId()
		})
	case *agentv1.LocalCallsStarted:
		t, err := a.open(p.GetTurnId())
		if err != nil {
			return err
		}
		a.Transcript.StartCalls(ev.WalSeq)
		t.StartedCalls = append(slices.Clone(t.StartedCalls), p.GetCalls()...)
	case *agentv1.RoundSubmitted:
		t, err := a.open(p.GetRound().GetTurnId())
		if err != nil {
			return err
		}
		if sum := p.GetRound().GetConversationSummary(); sum != nil {
			if s, err := a.SummaryOf(sum); err == nil {
				a.Conversation.replace(s)
			}
		}
		a.Conversation.say(p.GetRound(), a.Transcript.Rounds(), ev.WalSeq, a.Lane.Get(t.Record.GetMessageId()),
			t.Record)
		a.Transcript.BeginRound(ev.WalSeq, p.GetRound().GetWorkItemId())
		t.StartedCalls = nil
		t.Rounds = append(slices.Clone(t.Rounds), p.GetRound())
		t.edit(func(r *agentv1.Turn) { r.Rounds = int32(len(t.Rounds)) })
	case *agentv1.ToolResultRecorded:
		t, err := a.open(p.GetTurnId())
		if err != nil {
			return err
		}
		a.Transcript.ExtendRound(ev.WalSeq)
		t.stepped = t.stepped || p.GetMutated() && p.GetResult().GetStatus() == agentv1.ToolStatus_TOOL_STATUS_SUCCESS
		t.round(p.GetRoundIndex(), func(r *agentv1.Round) { r.ToolResults = append(r.ToolResults, p.GetResult()) })
		t.edit(func(r *agentv1.Turn) {
			r.WorkItemId = p.GetWorkItemId()
			if p.GetMutated() {
				r.Mutations++
			}
		})
		if r := t.Rounds[p.GetRoundIndex()]; p.GetMutated() && int(p.GetCallIndex()) < len(r.GetToolCalls()) {
			t.recordEffect(r.GetToolCalls()[p.GetCallIndex()], p.GetResult())
		}
	case *agentv1.RoundSettled:
		t, err := a.open(p.GetTurnId())
		if err != nil {
			return err
		}
		a.Transcript.ExtendRound(ev.WalSeq)
		t.round(p.GetRoundIndex(), func(r *agentv1.Round) { r.Settled = true })
		t.Progressed = t.stepped
		if len(p.GetInterjections()) > 0 || len(p.GetNotices()) > 0 || p.GetPromotedWorkItemId() != "" {
			if t.Settled == nil {
				t.Settled = map[int32]*agentv1.RoundSettled{}
			}
			t.Settled[p.GetRoundIndex()] = p
		}
	case *agentv1.TurnCompleted:
		a.endTurn(p.GetTurn(), true, ev.WalSeq)
	case *agentv1.TurnFailed:
		a.endTurn(p.GetTurn(), false, ev.WalSeq)
	case *agentv1.TurnInterrupted:
		a.endTurn(p.GetTurn(), false, ev.WalSeq)
	case *agentv1.TurnAborted:
		a.endTurn(p.GetTurn(), false, ev.WalSeq)
	default:
		return fmt.Errorf("agent: unknown event %q (%T)", ev.Type, ev.Payload)
	}
	return nil
}

// finishMessage keeps a message's last record in the lane. If the message is the pending tick,
// none is pending any more.
func (a *Agent) finishMessage(m *agentv1.Message) {
	a.Lane.Finish(m)
	if a.PendingTick == m.GetMessageId() {
		a.PendingTick = ""
	}
}
