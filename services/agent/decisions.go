package agent

import (
	"context"
	"fmt"
	"math"
	"quartet/services/agent/lane"
	"quartet/services/agent/ref"
	"strconv"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// GetFacts reads what the scheduler needs to decide (SPEC D1): of one agent, or
// a page of all agents of all namespaces.
func (s *Service) GetFacts(ctx context.Context, req *agentv1.GetFactsRequest) (*agentv1.GetFactsResponse, error) {
	if err := rpc.RequireService(ctx); err != nil {
		return nil, err
	}
	if req.GetAgentId() != "" {
		actor := rpc.ActorFrom(ctx)
		if req.GetAhead() {
			ctx = journal.Ahead(ctx, s.engine.For(actor.Namespace, req.GetAgentId()))
		}
		f, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*agentv1.AgentFacts, error) {
			a, err := st.agent(actor.Namespace, req.GetAgentId())
			if err != nil {
				return nil, err
			}
			f := a.factsNow()
			if a.turn != nil {
				f.OpenTurn = a.turn.rec
			}
			f.ReadyAhead = st.ahead(a)
			return f, nil
		})
		if err != nil {
			return nil, err
		}
		k := ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()}
		f.RunnersWaiting = int32(s.waiters.count(k, f.GetAgent()))
		if f.GetOpenTurn() != nil {
			if until, ok := s.leases.until(k, f.GetOpenTurn().GetRunId()); ok {
				f.OpenTurn = withLease(f.GetOpenTurn(), until)
			}
		}
		return &agentv1.GetFactsResponse{Facts: []*agentv1.AgentFacts{f}, Namespaces: []string{actor.Namespace}}, nil
	}
	return s.sweepFacts(ctx, req)
}

func (s *Service) sweepFacts(ctx context.Context, req *agentv1.GetFactsRequest) (*agentv1.GetFactsResponse, error) {
	from, err := page.Position("facts", req.GetPageToken(), 3)
	if err != nil {
		return nil, err
	}
	part, after := 0, ref.Agent{}
	if from != nil {
		if _, err := fmt.Sscanf(from[0], "%d", &part); err != nil || part >= len(s.engine.All()) || part < 0 {
			return nil, fault.CursorInvalid.Newf("page_token %q was not made by this list", req.GetPageToken())
		}
		after = ref.Agent{Namespace: from[1], ID: from[2]}
	}
	resp := &agentv1.GetFactsResponse{}
	_, _, err = journal.View(ctx, s.engine.All()[part], func(st *State) (struct{}, error) {
		// A look may run again, so it begins afresh.
		resp = &agentv1.GetFactsResponse{}
		var last key
		st.ids.AscendGreaterOrEqual(after, func(k key) bool {
			if k == after {
				return true
			}
			if len(resp.GetFacts()) == page.MaxSize {
				resp.NextPageToken = page.Token("facts", fmt.Sprint(part), last.Namespace, last.ID)
				return false
			}
			last = k
			if st.lookup(k).rec.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETED {
				return true // nothing will ever be decided for it (upstream #2534)
			}
			resp.Facts = append(resp.Facts, st.lookup(k).factsNow())
			resp.Namespaces = append(resp.Namespaces, k.Namespace)
			return true
		})
		return struct{}{}, nil
	})
	if err == nil && resp.GetNextPageToken() == "" && part+1 < len(s.engine.All()) {
		resp.NextPageToken = page.Token("facts", fmt.Sprint(part+1), "", "")
	}
	return resp, err
}

// mostAhead bounds a count that people read.
const mostAhead = 1000

// ahead is how many agents of its namespace have been ready for longer.
func (s *State) ahead(a *agentState) (n int32) {
	t := s.ready[a.namespace]
	if t == nil || a.readyAt.IsZero() {
		return 0
	}
	t.Ascend(func(r readyAgent) bool {
		if r.id == a.rec.GetAgentId() || n == mostAhead {
			return false
		}
		n++
		return true
	})
	return n
}

func (a *agentState) factsNow() *agentv1.AgentFacts {
	f := &agentv1.AgentFacts{
		Agent: a.rec, Queued: int32(a.lane.Len()), TickPending: a.tick != "", FactsRevision: a.facts,
		WakeHint: a.woken != nil, WakeHintSource: a.woken.GetSourceId(), FailedTicks: a.failedTicks,
	}
	if a.woken != nil {
		f.WokenAt = timestamppb.New(a.wokenAt)
	}
	f.QueuedInput = f.GetQueued()
	if t := a.lane.Get(a.tick); t.GetState() == agentv1.MessageState_MESSAGE_STATE_QUEUED {
		f.QueuedInput--
	}
	if h := a.lane.Head(); h != nil {
		f.HeadQueuedAt = h.GetCreatedAt()
	}
	if n := len(a.decisions); n > 0 {
		f.LastDecision = a.decisions[n-1]
	}
	f.ShownWaits = a.shown()
	if n := len(a.turns); n > 0 {
		f.LastTurnStartedAt = a.turns[n-1].rec.GetStartedAt()
	}
	return f
}

// recentTurns is how many completed turns still count as unheard of by the
// waiting plane, which hears of them milliseconds later.
const recentTurns = 3

// shown are the triggers that the latest completed turns were shown.
func (a *agentState) shown() []*agentv1.ShownWait {
	var shown []*agentv1.ShownWait
	for i, seen := len(a.turns)-1, 0; i >= 0 && seen < recentTurns; i-- {
		if t := a.turns[i].rec; t.GetState() == agentv1.TurnState_TURN_STATE_COMPLETED {
			shown = append(shown, t.GetShownWaits()...)
			seen++
		}
	}
	return shown
}

// Results of OfferDecision.
const (
	offerRecorded  = "recorded"
	offerUnchanged = "unchanged"
	offerStale     = "stale"
	offerPending   = "pending"
)

// OfferDecision records what the scheduler decided and queues its tick, in one
// frame, if the facts it was decided by still hold. That makes schedulers free
// to crash, to repeat themselves and to be many (SPEC D1, D4).
func (s *Service) OfferDecision(ctx context.Context, req *agentv1.OfferDecisionRequest) (*agentv1.OfferDecisionResponse, error) {
	if err := rpc.RequireService(ctx); err != nil {
		return nil, err
	}
	actor := rpc.ActorFrom(ctx)
	return plane.Do(ctx, s.engine, plane.Command[*State, *agentv1.OfferDecisionResponse]{
		Method: "OfferDecision", AgentID: req.GetAgentId(), Actor: plane.System(actor.Namespace), Sequel: true,
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.OfferDecisionResponse], error) {
			return decideOffer(st, env, req)
		},
		Answer: func(events []*journal.Event) (*agentv1.OfferDecisionResponse, error) {
			for _, ev := range events {
				if p, ok := ev.Payload.(*agentv1.DecisionRecorded); ok {
					return &agentv1.OfferDecisionResponse{Result: offerRecorded, MessageId: p.GetMessageId()}, nil
				}
			}
			return nil, fmt.Errorf("agent: no decision_recorded among %d events", len(events))
		},
	})
}

func decideOffer(s *State, env journal.Env, req *agentv1.OfferDecisionRequest) (journal.Decision[*agentv1.OfferDecisionResponse], error) {
	var d journal.Decision[*agentv1.OfferDecisionResponse]
	answer := func(result string) (journal.Decision[*agentv1.OfferDecisionResponse], error) {
		d.Reply = &agentv1.OfferDecisionResponse{Result: result}
		return d, nil
	}
	a, err := s.agent(env.Actor.Namespace, req.GetAgentId())
	if err != nil {
		return d, err
	}
	dec := proto.CloneOf(req.GetDecision())
	dec.LastTurnId, dec.FactsRevision = a.rec.GetLastTurnId(), a.facts
	dec.DecidedAt = timestamppb.New(env.Now)
	tick := dec.GetAction() == "tick"
	switch {
	case a.facts != req.GetFactsRevision(),
		tick && (a.rec.GetControl() != agentv1.Control_CONTROL_RUNNING || !a.lives()): // the scheduler knows better by now
		return answer(offerStale)
	case tick && a.tick != "":
		return answer(offerPending)
	case len(a.decisions) > 0 && !a.dropped && sameDecision(a.decisions[len(a.decisions)-1], dec):
		return answer(offerUnchanged)
	}
	recorded := &agentv1.DecisionRecorded{Decision: dec}
	d.Events = []*journal.Event{{AgentID: req.GetAgentId(), WorkItemID: dec.GetWorkItemId(), Payload: recorded}}
	if tick {
		m := lane.NewMessage(env, &agentv1.Message{
			AgentId: req.GetAgentId(), Kind: agentv1.MessageKind_MESSAGE_KIND_SYSTEM_TICK, Origin: agentv1.Origin_ORIGIN_SYSTEM,
			Text: dec.GetExplanation(), WorkItemId: dec.GetWorkItemId(),
			Tick: &agentv1.Tick{
				Reason: dec.GetTickReason(), WorkItemId: dec.GetWorkItemId(),
				Revision: dec.GetWorkItemRevision(), LastTurnId: dec.GetLastTurnId(),
			},
		})
		recorded.MessageId = m.GetMessageId()
		d.Events = append(d.Events, lane.Event(m, &agentv1.MessageQueued{Message: m}))
	}
	return d, nil
}

// sameDecision is the key of SPEC D4: a tick for the same reason, item, revision
// and last turn is the same tick.
func sameDecision(a, b *agentv1.Decision) bool {
	return a.GetAction() == b.GetAction() && a.GetTickReason() == b.GetTickReason() && a.GetReason() == b.GetReason() &&
		a.GetWorkItemId() == b.GetWorkItemId() && a.GetWorkItemRevision() == b.GetWorkItemRevision() &&
		a.GetLastTurnId() == b.GetLastTurnId()
}

// drop takes a stale tick out of the lane and says why (SPEC D4). It answers
// errNotTaken: the caller looks for another turn.
func (s *Service) drop(ctx context.Context, o *offer, reason string) error {
	_, err := plane.Do(ctx, s.engine, plane.Command[*State, struct{}]{
		Method: "DropMessage", AgentID: o.key.ID, Actor: plane.System(o.key.Namespace),
		Decide: func(st *State, env journal.Env) (journal.Decision[struct{}], error) {
			var d journal.Decision[struct{}]
			a, err := st.agent(o.key.Namespace, o.key.ID)
			if err != nil {
				return d, err
			}
			h := a.lane.Head()
			if h.GetMessageId() != o.message.GetMessageId() || a.woken != o.woken {
				return d, nil // another message, or news: it is looked at again
			}
			m := lane.WithState(h, env, agentv1.MessageState_MESSAGE_STATE_DROPPED, reason)
			d.Events = []*journal.Event{lane.Event(m, &agentv1.MessageDropped{Message: m})}
			return d, nil
		},
	})
	if err != nil {
		return err
	}
	return errNotTaken
}

// defaultDecisions is the page of a request that names no size.
const defaultDecisions = 20

// ListDecisions reads the recorded decisions, newest first (SPEC D6). The newest
// keptDecisions are kept; all of them are events.
func (s *Service) ListDecisions(ctx context.Context, req *agentv1.ListDecisionsRequest) (*agentv1.ListDecisionsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	n := int(req.GetPageSize())
	if n < 0 || n > keptDecisions {
		return nil, fault.LimitExceeded.Newf("page_size is %d; it must be 0 to %d", n, keptDecisions).WithField("page_size", "must be 0 to 100")
	}
	if n == 0 {
		n = defaultDecisions
	}
	from, err := page.Position("decisions", req.GetPageToken(), 1)
	if err != nil {
		return nil, err
	}
	before := int64(math.MaxInt64)
	if from != nil {
		if before, err = strconv.ParseInt(from[0], 10, 64); err != nil {
			return nil, fault.CursorInvalid.Newf("page_token %q was not made by this list", req.GetPageToken())
		}
	}
	resp, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*agentv1.ListDecisionsResponse, error) {
		a, err := st.agent(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		return a.decisionsBefore(before, n), nil
	})
	return resp, err
}

// decisionsBefore is a page of the decisions that rest on older facts. Each
// rests on newer ones than the decision before, so the position stays what it
// is while others are recorded.
func (a *agentState) decisionsBefore(before int64, n int) *agentv1.ListDecisionsResponse {
	resp := &agentv1.ListDecisionsResponse{}
	for i := len(a.decisions) - 1; i >= 0; i-- {
		d := a.decisions[i]
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
