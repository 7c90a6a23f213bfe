package agent

import (
	"context"
	"fmt"
	"maps"
	"quartet/services/agent/lane"
	"quartet/services/agent/ref"
	"slices"
	"strings"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	maxCalls = 64
	// roundTerm is what the calls of one round may wait for in all (SPEC T1).
	roundTerm = 45 * time.Second
)

// SubmitRound keeps an assistant's reply, runs its calls in order, and answers
// one result for each (SPEC A6). The reply is on disk before the first call
// runs, and each result before the next call does, so a repetition picks up
// where a crash cut it off; a call whose result is not known is asked of its
// plane under the same request id, which repeats nothing.
func (s *Service) SubmitRound(ctx context.Context, req *agentv1.SubmitRoundRequest) (*agentv1.SubmitRoundResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRun(actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId()); err != nil {
		return nil, err
	}
	if err := validateRound(req); err != nil {
		return nil, err
	}
	unlock := s.rounds.Lock(req.GetTurnId())
	defer unlock()

	k := ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()}
	ctx, span := s.within(ctx, k, req.GetTurnId(), "round", attribute.Int("quartet.round", int(req.GetRoundIndex())),
		attribute.Int64("gen_ai.usage.input_tokens", req.GetUsage().GetInputTokens()), attribute.Int64("gen_ai.usage.output_tokens", req.GetUsage().GetOutputTokens()))
	defer span.End()
	if round, resp, err := s.longAgo(ctx, k, req); err != nil || resp != nil {
		if err == nil {
			err = s.reveal(ctx, k, req.GetRunId(), round, resp)
		}
		return resp, err
	}
	round, err := s.keepRound(ctx, req)
	if err != nil {
		return nil, err
	}
	if !round.GetSettled() {
		release := s.leases.use(k, req.GetRunId())
		defer release()
		if err := s.runCalls(ctx, k, req.GetRunId(), round); err != nil {
			return nil, err
		}
	}
	resp, open, err := s.settleRound(ctx, k, req.GetTurnId(), req.GetRunId(), req.GetRoundIndex())
	if err != nil {
		return nil, err
	}
	if err := s.reveal(ctx, k, req.GetRunId(), round, resp); err != nil {
		return nil, err
	}
	if open {
		resp.LeaseExpiresAt = timestamppb.New(s.leases.arm(k, req.GetRunId()))
	}
	return resp, nil
}

func validateRound(req *agentv1.SubmitRoundRequest) error {
	if req.GetRoundIndex() < 0 {
		return fault.Invalid("round_index", fmt.Sprint(req.GetRoundIndex()), "must be 0 or more")
	}
	if err := fault.TextBytes("text", req.GetText(), fault.MaxRoundTextBytes, false); err != nil {
		return err
	}
	if err := fault.Entries("tool_calls", len(req.GetToolCalls()), maxCalls); err != nil {
		return err
	}
	seen := map[string]bool{}
	for i, c := range req.GetToolCalls() {
		if err := fault.Text(fmt.Sprintf("tool_calls[%d].name", i), c.GetName(), 128, true); err != nil {
			return err
		}
		if err := fault.Text(fmt.Sprintf("tool_calls[%d].call_id", i), c.GetCallId(), 128, false); err != nil {
			return err
		}
		if id := c.GetCallId(); id != "" && seen[id] {
			return fault.Invalid(fmt.Sprintf("tool_calls[%d].call_id", i), id, "must be unique in its round")
		}
		seen[c.GetCallId()] = true
		if err := shallow(fmt.Sprintf("tool_calls[%d].arguments", i), c.GetArguments()); err != nil {
			return err
		}
	}
	for i, r := range req.GetLocalToolResults() {
		for _, s := range append(r.GetWarnings(), r.GetResult(), r.GetError().GetDetails()) {
			if err := shallow(fmt.Sprintf("local_tool_results[%d]", i), s); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxNesting is how deep arguments and results may be nested. The journal takes
// no more, and nobody says more so.
const maxNesting = 32

// shallow refuses what is nested too deep to be kept.
func shallow(field string, s *structpb.Struct) error {
	if deeper(structpb.NewStructValue(s), maxNesting) {
		return fault.Invalid(field, fmt.Sprintf("nested more than %d deep", maxNesting), fmt.Sprintf("must be nested at most %d deep", maxNesting))
	}
	return nil
}

// deeper reports whether a value is nested deeper than n.
func deeper(v *structpb.Value, n int) bool {
	var below []*structpb.Value
	switch k := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		below = slices.Collect(maps.Values(k.StructValue.GetFields()))
	case *structpb.Value_ListValue:
		below = k.ListValue.GetValues()
	default:
		return false
	}
	return n == 0 || slices.ContainsFunc(below, func(v *structpb.Value) bool { return deeper(v, n-1) })
}

// keepRound writes the reply down, or finds it written.
func (s *Service) keepRound(ctx context.Context, req *agentv1.SubmitRoundRequest) (*agentv1.Round, error) {
	return plane.Do(ctx, s.engine, plane.Command[*State, *agentv1.Round]{
		Method: "SubmitRound", AgentID: req.GetAgentId(),
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.Round], error) {
			return decideRound(st, env, req)
		},
		Answer: func(events []*journal.Event) (*agentv1.Round, error) {
			for _, ev := range events {
				if p, ok := ev.Payload.(*agentv1.RoundSubmitted); ok {
					return p.GetRound(), nil
				}
			}
			return nil, fmt.Errorf("agent: no round_submitted among %d events", len(events))
		},
	})
}

func decideRound(s *State, env journal.Env, req *agentv1.SubmitRoundRequest) (journal.Decision[*agentv1.Round], error) {
	var d journal.Decision[*agentv1.Round]
	round := submitted(req)
	a, err := s.agent(env.Actor.Namespace, req.GetAgentId())
	if err != nil {
		return d, err
	}
	// A round that was kept before is answered also after the turn has ended:
	// it may have been this very round that ended it.
	if t := a.find(req.GetTurnId()); t != nil && t.rec.GetRunId() == req.GetRunId() && int(req.GetRoundIndex()) < len(t.rounds) {
		kept := t.rounds[req.GetRoundIndex()]
		if !sameRound(kept, round) {
			return d, roundReused(req)
		}
		if kept.GetSettled() {
			d.Reply = kept
			return d, nil
		}
	}
	t, err := s.held(env.Actor.Namespace, req.GetAgentId(), req.GetTurnId(), req.GetRunId())
	if err != nil {
		return d, err
	}
	switch n := len(t.rounds); {
	case int(req.GetRoundIndex()) < n:
		d.Reply = t.rounds[req.GetRoundIndex()]
		return d, nil
	case int(req.GetRoundIndex()) > n:
		return d, fault.Invalid("round_index", fmt.Sprint(req.GetRoundIndex()), fmt.Sprintf("must be %d, the next round of the turn", n))
	case n > 0 && !t.rounds[n-1].GetSettled():
		return d, fault.Invalid("round_index", fmt.Sprint(req.GetRoundIndex()), fmt.Sprintf("must be %d: that round has calls without a result; submit it again", n-1))
	}
	round.WorkItemId = t.rec.GetWorkItemId()
	round.CreatedAt = timestamppb.New(env.Now)
	d.Events = []*journal.Event{{
		AgentID: req.GetAgentId(), WorkItemID: round.GetWorkItemId(), Payload: &agentv1.RoundSubmitted{Round: round},
	}}
	return d, nil
}

func sameRound(a, b *agentv1.Round) bool {
	return a.GetText() == b.GetText() &&
		slices.EqualFunc(a.GetToolCalls(), b.GetToolCalls(), func(x, y *agentv1.ToolCall) bool { return proto.Equal(x, y) }) &&
		slices.EqualFunc(a.GetLocalToolResults(), b.GetLocalToolResults(), func(x, y *agentv1.ToolResult) bool { return proto.Equal(x, y) }) &&
		a.GetUsage().GetInputTokens() == b.GetUsage().GetInputTokens() && a.GetUsage().GetOutputTokens() == b.GetUsage().GetOutputTokens()
}

// runCalls executes the calls that have no result yet, in order, and records
// each result before the next call runs.
func (s *Service) runCalls(ctx context.Context, k key, runID string, round *agentv1.Round) error {
	binding, err := s.binding(ctx, k, round.GetTurnId(), runID)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(roundTerm)
	ended := endedBy(round)
	taken := 0
	for _, r := range round.GetToolResults() {
		taken += proto.Size(r)
	}
	for i := len(round.GetToolResults()); i < len(round.GetToolCalls()); i++ {
		call := round.GetToolCalls()[i]
		out := outcome{bind: binding}
		switch {
		case ended != "":
			out.result = failed(call, fault.TurnEnded.Newf("the turn ended with %s; submit what is left in the next turn", ended))
		default:
			out = s.call(ctx, callScope{
				agent: k, runID: runID, turnID: round.GetTurnId(), binding: binding,
				requestID: callID(runID, round, i), left: time.Until(deadline), silent: strings.TrimSpace(round.GetText()) == "",
			}, call)
		}
		if err := ctx.Err(); err != nil {
			return fault.From(err) // the result may be the deadline's; the repetition asks again
		}
		taken = fit(&out, call, taken)
		out.result.WorkItemId = binding
		conceal(out.result)
		if round, err = s.record(ctx, k, runID, round, i, out); err != nil {
			return err
		}
		binding = out.bind
		ended = endedBy(round)
	}
	return nil
}

// callID is the request id of a call: who repeats it gets the first answer.
func callID(runID string, round *agentv1.Round, index int) string {
	return fmt.Sprintf("%s/%d/%d", runID, round.GetIndex(), index)
}

// endedBy names the call of a round that ended the turn at once.
func endedBy(round *agentv1.Round) string {
	for _, r := range round.GetToolResults() {
		if r.GetToolName() == toolWaitFor && r.GetStatus() == statusSuccess {
			return toolWaitFor
		}
	}
	return ""
}

func (s *Service) binding(ctx context.Context, k key, turnID, runID string) (string, error) {
	b, _, err := plane.View(ctx, s.engine, k.ID, func(st *State) (string, error) {
		t, err := st.held(k.Namespace, k.ID, turnID, runID)
		if err != nil {
			return "", err
		}
		return t.rec.GetWorkItemId(), nil
	})
	return b, err
}

// record keeps the result of one call, if the run still holds the turn: after a
// run is stale at most the call in flight has landed (ARCHITECTURE section 12).
func (s *Service) record(ctx context.Context, k key, runID string, round *agentv1.Round, index int, out outcome) (*agentv1.Round, error) {
	_, err := plane.Do(ctx, s.engine, plane.Command[*State, *agentv1.Round]{
		Method: "RecordResult", AgentID: k.ID,
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.Round], error) {
			var d journal.Decision[*agentv1.Round]
			if _, err := st.held(k.Namespace, k.ID, round.GetTurnId(), runID); err != nil {
				return d, err
			}
			d.Events = []*journal.Event{{
				AgentID: k.ID, WorkItemID: out.result.GetWorkItemId(),
				Payload: &agentv1.ToolResultRecorded{
					TurnId: round.GetTurnId(), RoundIndex: round.GetIndex(), CallIndex: int32(index),
					Result: out.result, Mutated: out.mutated, WorkItemId: out.bind,
				},
			}}
			d.Events = append(d.Events, st.lookup(k).answer(env, answeredTask(out.result))...)
			return d, nil
		},
	})
	if err != nil {
		return nil, err
	}
	next := proto.CloneOf(round)
	next.ToolResults = append(next.ToolResults, out.result)
	return next, nil
}

// settleRound does what follows from the whole round: promotion, the end of the
// turn, interjections. For a round that was settled before it answers the same.
// open says whether the turn goes on.
func (s *Service) settleRound(ctx context.Context, k key, turnID, runID string, index int32) (resp *agentv1.SubmitRoundResponse, open bool, err error) {
	type found struct {
		round   *agentv1.Round
		turn    *agentv1.Turn
		settled *agentv1.RoundSettled
		due     *reminder
	}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *State) (found, error) {
		a, err := st.agent(k.Namespace, k.ID)
		if err != nil {
			return found{}, err
		}
		t := a.find(turnID)
		if t == nil || int(index) >= len(t.rounds) {
			return found{}, fault.NotFound.Newf("turn %q has no round %d", turnID, index)
		}
		return found{t.rounds[index], t.rec, t.settled[index], t.reminder()}, nil
	})
	if err != nil {
		return nil, false, err
	}
	if f.round.GetSettled() {
		rpc.Replayed(ctx)
		open := f.turn.GetState() == agentv1.TurnState_TURN_STATE_OPEN
		return answerAgain(f.round, f.settled, f.turn, index == f.turn.GetRounds()-1), open, nil
	}
	promoted, notices, err := s.promote(ctx, k, runID, f.round)
	if err != nil {
		return nil, false, err
	}
	how := ending{state: agentv1.TurnState_TURN_STATE_COMPLETED}
	switch {
	case endedBy(f.round) != "":
		how.reason = "wait_for"
	case promoted != "":
		how.reason = "completion_promoted"
	default:
		if n := s.remind(ctx, k, runID, f.due); n != "" {
			notices = append(notices, n)
		}
	}
	resp, err = plane.Do(ctx, s.engine, plane.Command[*State, *agentv1.SubmitRoundResponse]{
		Method: "SettleRound", AgentID: k.ID,
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.SubmitRoundResponse], error) {
			var d journal.Decision[*agentv1.SubmitRoundResponse]
			if _, err := st.held(k.Namespace, k.ID, turnID, runID); err != nil {
				return d, err
			}
			a := st.lookup(k)
			settled := &agentv1.RoundSettled{TurnId: turnID, RoundIndex: index, PromotedWorkItemId: promoted, Notices: notices}
			d.Events = []*journal.Event{{AgentID: k.ID, WorkItemID: f.round.GetWorkItemId(), Payload: settled}}
			if how.reason != "" {
				d.Events = a.endEvents(env, how, d.Events)
				return d, nil
			}
			d.Events, settled.Interjections = a.interject(env, a.turn.rec, "", d.Events)
			return d, nil
		},
		Answer: func(events []*journal.Event) (*agentv1.SubmitRoundResponse, error) {
			resp := &agentv1.SubmitRoundResponse{ToolResults: f.round.GetToolResults()}
			for _, ev := range events {
				if p, ok := ev.Payload.(*agentv1.RoundSettled); ok {
					resp.Interjections, resp.Notices, resp.PromotedWorkItemId = p.GetInterjections(), p.GetNotices(), p.GetPromotedWorkItemId()
				}
			}
			if t := endedTurn(events); t != nil {
				resp.TurnEnded, resp.EndReason = true, t.GetEndReason()
			}
			return resp, nil
		},
	})
	return resp, !resp.GetTurnEnded(), err
}

// interject hands the queued interjections to a turn, all but one message.
func (a *agentState) interject(env journal.Env, t *agentv1.Turn, but string, events []*journal.Event) ([]*journal.Event, []*agentv1.Message) {
	var handed []*agentv1.Message
	for _, m := range a.lane.Interjections() {
		if m.GetMessageId() == but {
			continue
		}
		i := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_INTERJECTED, "")
		i.TurnId = t.GetTurnId()
		events = append(events, lane.Event(i, &agentv1.MessageInterjected{Message: i}))
		handed = append(handed, i)
	}
	return events, handed
}

// asRun makes calls to other planes act as the agent in its run (SPEC X4).
func (s *Service) asRun(ctx context.Context, k key, runID string) context.Context {
	return rpc.WithActor(ctx, runActor(k, runID))
}

func runActor(k key, runID string) rpc.Actor {
	return rpc.Actor{Namespace: k.Namespace, Principal: runPrincipal(k), Role: rpc.RoleAgent, AgentID: k.ID, RunID: runID}
}

// runPrincipal is the name that an agent's calls go by; request ids are its own.
func runPrincipal(k key) string { return "agent/" + k.ID }
