package state

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/packed"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/lane"
	"quartet/services/agent/transcript"
)

// Owners implements journal.Paged: there is a page for each agent, also for a deleted one. An event changes the agent
// that it is about. When a request gets another turn, it changes also the agent of the turn that the request found
// before.
func (s *State) Owners(ev *journal.Event, touch func(snapshot.Owner)) {
	touch(snapshot.Owner{Namespace: ev.Namespace, ID: ev.AgentID})
	if row, err := eventRows.Of(ev); err == nil && row.pages != nil {
		row.pages(s, ev, touch)
	}
}

// AllOwners implements journal.Paged: it calls fn with every agent, in memory or evicted.
func (s *State) AllOwners(fn func(snapshot.Owner)) {
	for k := range s.agents.Keys() {
		fn(snapshot.Owner(k))
	}
}

// NewPage implements journal.Paged.
func (s *State) NewPage() proto.Message { return &agentv1.AgentPage{} }

// Page implements journal.Paged: it returns the page of an agent, nil if there is no such agent.
func (s *State) Page(o snapshot.Owner) proto.Message {
	k := plane.Key(o)
	a := s.agents.Peek(k)
	if a == nil {
		return nil
	}
	return s.pageOf(k, a)
}

// pageOf returns the page of an agent.
func (s *State) pageOf(k plane.Key, a *Agent) *agentv1.AgentPage {
	p := &agentv1.AgentPage{
		Agent: a.Record, Lane: a.Lane.Page(), Transcript: a.Transcript.Page(), Briefs: briefsPage(a.Briefs),
		Conversation: a.Conversation.page(),
		EndedTurns:   slab[agentv1.TurnPage](a.EndedTurns.Len()), EndedTurnsBefore: int64(a.EndedTurns.Dropped()),
		Decisions: a.Decisions.All(), DecisionsBefore: int64(a.Decisions.Dropped()), PendingTick: a.PendingTick,
		TickDropped: a.TickDropped,
		Wake:        a.Wake, WokenAt: stamp(a.wokenAt), FactsRevision: a.FactsRevision, ReadySince: stamp(a.ReadySince),
		FailedTicks:   a.failedTicks,
		AnsweredTasks: slices.Clone(a.AnsweredTasks),
		Delegations:   slab[agentv1.DelegationPage](len(a.Delegations)), FirstItem: a.firstItem, Deletion: a.deletion,
		InheritedContext: a.InheritedContext,
		Stalls:           slab[agentv1.StallPage](len(a.stalls)),
	}
	if a.OpenTurn != nil {
		p.OpenTurn = &agentv1.TurnPage{}
		s.turnPage(k, a.OpenTurn, p.GetOpenTurn())
	}
	for i, t := range a.EndedTurns.All() {
		s.turnPage(k, t, p.GetEndedTurns()[i])
	}
	for i, d := range a.Delegations {
		into := p.GetDelegations()[i]
		into.Delegation, into.Child, into.InitialMessage, into.InheritedContext, into.MaxAuthority = d.Record, d.Child,
			d.InitialMessage, d.InheritedContext, d.MaxAuthority
	}
	for i, st := range a.stalls {
		into := p.GetStalls()[i]
		into.ItemId, into.Turns, into.Since, into.Revision = st.itemID, st.turns, st.since, st.revision
	}
	return p
}

// turnPage fills the page of a turn of an agent.
func (s *State) turnPage(k plane.Key, t *Turn, p *agentv1.TurnPage) {
	t.page(p)
	if t.Record.GetAcquireRequestId() != "" {
		p.FoundByRequest = s.AcquiredTurns[RequestOf(k.Namespace, t.Record)] == AcquiredTurn{k, t.Record.GetTurnId()}
	}
}

// page fills the page of a turn with what the turn itself has.
func (t *Turn) page(p *agentv1.TurnPage) {
	p.Turn, p.Rounds, p.StartedCalls, p.ShownWake = t.Record, t.Rounds, t.StartedCalls, t.shownWake
	if len(t.Settled) > 0 { // it is edited in place
		p.Settled = make(map[int32]*agentv1.RoundSettled, len(t.Settled))
		for i, settled := range t.Settled {
			p.Settled[i] = settled
		}
	}
	p.HeardBefore, p.HeardInAll = int64(t.heardBefore), int64(t.heardInAll)
	p.Changed, p.Effects, p.Progressed, p.Stepped = t.changed, t.effects, t.Progressed, t.stepped
}

// AddPage implements journal.Paged: it adds the agent of a page, and the requests that find its turns. It
// returns an error if the state has the agent already, or if the page is that of another agent or type.
func (s *State) AddPage(o snapshot.Owner, page proto.Message) error {
	k := plane.Key(o)
	p, ok := page.(*agentv1.AgentPage)
	switch {
	case !ok:
		return fmt.Errorf("agent: a page of the agent plane is no %T", page)
	case s.agents.Has(k):
		return fmt.Errorf("agent: %s has two pages", k.ID)
	case p.GetAgent().GetAgentId() != k.ID:
		return fmt.Errorf("agent: the page of %s has the record of %q", k.ID, p.GetAgent().GetAgentId())
	}
	a, err := agentFrom(k, p)
	if err != nil {
		return fmt.Errorf("agent: the page of %s: %w", k.ID, err)
	}
	for _, t := range append(slices.Clone(p.GetEndedTurns()), p.GetOpenTurn()) {
		if !t.GetFoundByRequest() {
			continue
		}
		of := RequestOf(k.Namespace, t.GetTurn())
		if other, ok := s.AcquiredTurns[of]; ok {
			return fmt.Errorf("agent: the page of %s: turn %s is found by a request that finds turn %s of %s", k.ID,
				t.GetTurn().GetTurnId(), other.TurnID, other.Agent.ID)
		}
		s.AcquiredTurns[of] = AcquiredTurn{k, t.GetTurn().GetTurnId()}
	}
	s.addAgent(k, a)
	if !a.ReadySince.IsZero() {
		s.Ready[k.Namespace].ReplaceOrInsert(ReadyAgent{a.ReadySince, k.ID})
	}
	return nil
}

// agentFrom returns the agent that a page has.
func agentFrom(k plane.Key, p *agentv1.AgentPage) (*Agent, error) {
	a := &Agent{
		Namespace: k.Namespace, Record: p.GetAgent(), PendingTick: p.GetPendingTick(), TickDropped: p.GetTickDropped(),
		Wake: p.GetWake(), wokenAt: timeOf(p.GetWokenAt()), FactsRevision: p.GetFactsRevision(),
		ReadySince: timeOf(p.GetReadySince()), failedTicks: p.GetFailedTicks(),
		AnsweredTasks: p.GetAnsweredTasks(), firstItem: p.GetFirstItem(), deletion: p.GetDeletion(),
		InheritedContext: p.GetInheritedContext(),
	}
	var err error
	if a.Lane, err = lane.FromPage(p.GetLane()); err != nil {
		return nil, err
	}
	if a.Transcript, err = transcript.FromPage(p.GetTranscript()); err != nil {
		return nil, err
	}
	if a.Briefs, err = briefsFrom(p.GetBriefs()); err != nil {
		return nil, err
	}
	if a.Conversation, err = conversationFrom(p.GetConversation()); err != nil {
		return nil, err
	}
	if p.GetOpenTurn() != nil {
		if a.OpenTurn, err = turnFrom(p.GetOpenTurn()); err != nil {
			return nil, fmt.Errorf("the open turn: %w", err)
		}
	}
	ended := make([]*Turn, len(p.GetEndedTurns()))
	for i, t := range p.GetEndedTurns() {
		if ended[i], err = turnFrom(t); err != nil {
			return nil, fmt.Errorf("ended turn %d: %w", i, err)
		}
	}
	if a.EndedTurns, err = packed.Restored[*Turn, turnCodec](int(p.GetEndedTurnsBefore()), ended); err != nil {
		return nil, fmt.Errorf("ended turns: %w", err)
	}
	if a.Decisions, err = packed.Restored[*agentv1.Decision, decisionCodec](int(p.GetDecisionsBefore()),
		p.GetDecisions()); err != nil {
		return nil, fmt.Errorf("decisions: %w", err)
	}
	for i, d := range p.GetDelegations() {
		if d.GetDelegation() == nil {
			return nil, fmt.Errorf("delegation %d has no record", i)
		}
		a.Delegations = append(a.Delegations, &Delegation{
			d.GetDelegation(), d.GetChild(), d.GetInitialMessage(),
			d.GetInheritedContext(), d.GetMaxAuthority(),
		})
	}
	for _, st := range p.GetStalls() {
		a.stalls = append(a.stalls, stall{st.GetItemId(), st.GetTurns(), st.GetSince(), st.GetRevision()})
	}
	return a, nil
}

// turnFrom returns the turn that a page has.
func turnFrom(p *agentv1.TurnPage) (*Turn, error) {
	if p.GetTurn() == nil {
		return nil, errors.New("it has no record")
	}
	return &Turn{
		Record: p.GetTurn(), Rounds: p.GetRounds(), Settled: p.GetSettled(), StartedCalls: p.GetStartedCalls(),
		heardBefore: int(p.GetHeardBefore()), heardInAll: int(p.GetHeardInAll()), shownWake: p.GetShownWake(),
		changed: p.GetChanged(), effects: p.GetEffects(), Progressed: p.GetProgressed(), stepped: p.GetStepped(),
	}, nil
}

// slab returns n messages that are allocated together.
func slab[M any](n int) []*M {
	all, pointers := make([]M, n), make([]*M, n)
	for i := range all {
		pointers[i] = &all[i]
	}
	return pointers
}

// stamp returns a time as a page has it: the zero time is unset.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// timeOf is the inverse of the function stamp: it returns the time of t, and the zero time for nil.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
