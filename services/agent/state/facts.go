package state

import (
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// Facts returns what the scheduler decides by, as far as this plane knows it.
func (a *Agent) Facts() *agentv1.AgentFacts {
	f := &agentv1.AgentFacts{
		Namespace: a.Namespace,
		Agent:     a.Record, Queued: int32(a.Lane.Len()), QueuedBytes: int64(a.Lane.Bytes()),
		TickPending: a.PendingTick != "", FactsRevision: a.FactsRevision,
		WakeHint: a.Wake != nil, WakeHintSource: a.Wake.GetSourceId(), WakeWaitIds: a.Wake.GetWaitIds(),
		FailedTicks: a.failedTicks,
	}
	if a.Wake != nil {
		f.WokenAt = timestamppb.New(a.wokenAt)
	}
	f.StalledItems, f.AskingChildren = a.Stalled(), a.AskingChildren()
	f.QueuedInput = f.GetQueued()
	if t := a.Lane.Get(a.PendingTick); t.GetState() == agentv1.MessageState_MESSAGE_STATE_QUEUED {
		f.QueuedInput--
	}
	if h := a.Lane.Head(); h != nil {
		f.HeadQueuedAt, f.HeadTick = h.GetCreatedAt(), h.GetTick()
	}
	f.LastDecision = a.Decisions.Last()
	f.ShownWaits = a.shownWaits()
	if last := a.EndedTurns.Last(); last != nil {
		f.LastTurnStartedAt = last.Record.GetStartedAt()
	}
	return f
}

// RecentTurns is how many completed turns shownWaits reads. The waiting plane consumes a completed turn
// within milliseconds, so it has consumed all earlier ones.
const RecentTurns = 3

// shownWaits returns the waits, with their trigger counts, that the last RecentTurns completed turns
// showed. It lists the waits of later turns first, and a wait once for each turn that showed it.
func (a *Agent) shownWaits() []*agentv1.ShownWait {
	var shown []*agentv1.ShownWait
	seen := 0
	for t := range a.EndedTurns.Backward() {
		if seen == RecentTurns {
			break
		}
		if t.Record.GetState() == agentv1.TurnState_TURN_STATE_COMPLETED {
			shown = append(shown, t.Record.GetShownWaits()...)
			seen++
		}
	}
	return shown
}

// DecisionsBefore returns a page of the decisions that rest on older facts than a given
// revision. Each decision rests on newer facts than the one before, so a page token stays
// valid while others are recorded.
func (a *Agent) DecisionsBefore(before int64, n int) *agentv1.ListDecisionsResponse {
	resp := &agentv1.ListDecisionsResponse{}
	seen := 0
	for d := range a.Decisions.Backward() {
		if seen++; seen > KeptDecisions {
			break
		}
		switch {
		case d.GetFactsRevision() >= before:
			continue
		case len(resp.GetDecisions()) == n:
			last := resp.GetDecisions()[n-1].GetFactsRevision()
			resp.NextPageToken = page.Token("decisions", strconv.FormatInt(last, 10))
			return resp
		}
		resp.Decisions = append(resp.Decisions, d)
	}
	return resp
}
