package facts

import (
	"context"
	"math"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/lane"
	"quartet/services/agent/state"
)

// OfferDecision records a decision of the scheduler and, if it is a tick, queues the tick in the
// same frame. It records nothing, and the result says why, if the facts on which the decision
// rests have changed (stale), if a tick is pending already (pending), or if the decision equals the
// last one (unchanged). So schedulers may crash, repeat an offer, or run more than once (SPEC D1,
// D4).
func (s *Service) OfferDecision(ctx context.Context, req *agentv1.OfferDecisionRequest) (*agentv1.OfferDecisionResponse,
	error,
) {
	actor := rpc.ActorFrom(ctx)
	return plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.OfferDecisionResponse]{
		Method: "OfferDecision", AgentID: req.GetAgentId(), Actor: plane.System(actor.Namespace), FollowUp: true,
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.OfferDecisionResponse], error) {
			return decideOffer(st, env, req)
		},
		Answer: journal.AnswerOf(func(p *agentv1.DecisionRecorded) *agentv1.OfferDecisionResponse {
			return &agentv1.OfferDecisionResponse{
				Result:    agentv1.OfferResult_OFFER_RESULT_RECORDED,
				MessageId: p.GetMessageId(),
			}
		}),
	})
}

func decideOffer(s *state.State, env journal.Env, req *agentv1.OfferDecisionRequest) (
	journal.Decision[*agentv1.OfferDecisionResponse], error,
) {
	var d journal.Decision[*agentv1.OfferDecisionResponse]
	answer := func(result agentv1.OfferResult) (journal.Decision[*agentv1.OfferDecisionResponse], error) {
		d.Reply = &agentv1.OfferDecisionResponse{Result: result}
		return d, nil
	}
	a, err := s.Find(env.Actor.Namespace, req.GetAgentId())
	if err != nil {
		return d, err
	}
	dec := proto.CloneOf(req.GetDecision())
	dec.LastTurnId, dec.FactsRevision = a.Record.GetLastTurnId(), a.FactsRevision
	dec.DecidedAt = timestamppb.New(env.Now)
	tick := dec.GetAction() == agentv1.DecisionAction_DECISION_ACTION_TICK
	switch {
	case a.FactsRevision != req.GetFactsRevision(),
		// the facts were read ahead, and an event of theirs was lost; an older scheduler sends no load
		req.GetLoadId() != "" && req.GetLoadId() != string(s.LoadID),
		// the scheduler has newer facts by now
		tick && (a.Record.GetControl() != agentv1.Control_CONTROL_RUNNING || !a.IsActive()):
		return answer(agentv1.OfferResult_OFFER_RESULT_STALE)
	case tick && a.PendingTick != "":
		return answer(agentv1.OfferResult_OFFER_RESULT_PENDING)
	case a.Decisions.Len() > 0 && !a.TickDropped && sameDecision(a.Decisions.Last(), dec):
		return answer(agentv1.OfferResult_OFFER_RESULT_UNCHANGED)
	}
	recorded := &agentv1.DecisionRecorded{Decision: dec}
	d.Events = []*journal.Event{{AgentID: req.GetAgentId(), WorkItemID: dec.GetWorkItemId(), Payload: recorded}}
	if tick {
		m := lane.NewMessage(env, &agentv1.Message{
			AgentId: req.GetAgentId(), Kind: agentv1.MessageKind_MESSAGE_KIND_SYSTEM_TICK,
			Origin: agentv1.Origin_ORIGIN_SYSTEM,
			Text:   dec.GetExplanation(), WorkItemId: dec.GetWorkItemId(),
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

// sameDecision reports whether two decisions are the same by SPEC D4: for the same
// reason, item, revision and last turn.
func sameDecision(a, b *agentv1.Decision) bool {
	return plane.EqualExcept(a, b, "explanation", "decided_at", "facts_revision")
}

// DefaultDecisions is the default page size.
const DefaultDecisions = 20

// ListDecisions reads the newest recorded decisions, newest first (SPEC D6). All
// decisions are events.
func (s *Service) ListDecisions(ctx context.Context, req *agentv1.ListDecisionsRequest) (*agentv1.ListDecisionsResponse,
	error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	n := int(req.GetPageSize())
	if n < 0 || n > state.KeptDecisions {
		return nil, fault.LimitExceeded.Newf("page_size is %d; it must be 0 to %d", n, state.KeptDecisions).
			WithField("page_size", "must be 0 to 100")
	}
	if n == 0 {
		n = DefaultDecisions
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
	resp, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *state.State) (*agentv1.ListDecisionsResponse,
		error,
	) {
		a, err := st.Find(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		return a.DecisionsBefore(before, n), nil
	})
	return resp, err
}
