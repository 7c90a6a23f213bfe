package state

import (
	"slices"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

func foldTurnStarted(a *Agent, _ *journal.Event, p *agentv1.TurnStarted) error {
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
	return nil
}

func foldCallsStarted(a *Agent, ev *journal.Event, p *agentv1.LocalCallsStarted) error {
	t, err := a.open(p.GetTurnId())
	if err != nil {
		return err
	}
	a.Transcript.StartCalls(ev.WalSeq)
	t.StartedCalls = append(slices.Clone(t.StartedCalls), p.GetCalls()...)
	return nil
}

func foldRoundSubmitted(a *Agent, ev *journal.Event, p *agentv1.RoundSubmitted) error {
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
	return nil
}

func foldToolResult(a *Agent, ev *journal.Event, p *agentv1.ToolResultRecorded) error {
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
	return nil
}

func foldRoundSettled(a *Agent, ev *journal.Event, p *agentv1.RoundSettled) error {
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
	return nil
}

func foldTurnCompleted(a *Agent, ev *journal.Event, p *agentv1.TurnCompleted) error {
	a.endTurn(p.GetTurn(), true, ev.WalSeq)
	return nil
}

// foldTurnEnded folds the end of a turn that was not completed.
func foldTurnEnded[P withTurn](a *Agent, ev *journal.Event, p P) error {
	a.endTurn(p.GetTurn(), false, ev.WalSeq)
	return nil
}
