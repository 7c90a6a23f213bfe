package turns

import (
	"context"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
	"quartet/services/agent/toolcalls"
	"quartet/services/agent/tools"
)

// MaxCalls bounds the tool calls of one round.
const MaxCalls = 64

// SubmitRound stores an assistant's reply, executes its calls in order, and returns one
// result for each (SPEC A6). The reply is on disk before the first call runs, and each
// result before the next call does, so a repetition continues where a crash cut the round
// off. A call whose result is unknown is sent again under the same request id, which
// executes it once.
func (s *Service) SubmitRound(ctx context.Context, req *agentv1.SubmitRoundRequest) (*agentv1.SubmitRoundResponse,
	error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRun(actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId()); err != nil {
		return nil, err
	}
	if err := validateRound(req); err != nil {
		return nil, err
	}
	unlock := s.roundLocks.Lock(req.GetTurnId())
	defer unlock()

	k := plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()}
	ctx, span := s.startSpan(ctx, k, req.GetTurnId(), "round", attribute.Int("quartet.round", int(req.GetRoundIndex())),
		attribute.Int64("gen_ai.usage.input_tokens", req.GetUsage().GetInputTokens()),
		attribute.Int64("gen_ai.usage.output_tokens", req.GetUsage().GetOutputTokens()))
	defer span.End()
	if round, resp, err := s.replayedRound(ctx, plane.Recorded(actor), req); err != nil || resp != nil {
		if err == nil {
			err = s.revealSecrets(ctx, k, req.GetRunId(), round, resp)
		}
		return resp, err
	}
	round, err := s.storeRound(ctx, req)
	if err != nil {
		return nil, err
	}
	if !round.GetSettled() {
		release := s.leases.Hold(k, req.GetRunId())
		defer release()
		if err := s.runCalls(ctx, k, req.GetRunId(), round); err != nil {
			return nil, plane.Stored(err)
		}
	}
	resp, open, err := s.settleRound(ctx, k, req.GetTurnId(), req.GetRunId(), req.GetRoundIndex())
	if err != nil {
		return nil, plane.Stored(err)
	}
	if err := s.revealSecrets(ctx, k, req.GetRunId(), round, resp); err != nil {
		return nil, plane.Stored(err)
	}
	if open {
		resp.LeaseExpiresAt = timestamppb.New(s.leases.Arm(k, req.GetRunId()))
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
	if sum := req.GetConversationSummary(); sum != nil {
		if err := fault.First(
			fault.TextBytes("conversation_summary.text", sum.GetText(), state.MaxSummaryBytes, true),
			fault.NotBlank("conversation_summary.text", sum.GetText()),
			fault.Text("conversation_summary.through_turn_id", sum.GetThroughTurnId(), fault.MaxNameChars, false),
		); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	if err := validateCalls("tool_calls", req.GetToolCalls(), false, seen); err != nil {
		return err
	}
	if err := validateCalls("local_tool_calls", req.GetLocalToolCalls(), true, seen); err != nil {
		return err
	}
	for i, r := range req.GetLocalToolResults() {
		for _, s := range append(r.GetWarnings(), r.GetResult(), r.GetError().GetDetails()) {
			if err := tools.CheckNesting(fmt.Sprintf("local_tool_results[%d]", i), s); err != nil {
				return err
			}
		}
	}
	return nil
}

// validateCalls checks the calls of a field and adds their ids to seen, which has the call ids of the round.
// needsID says that each call must have an id.
func validateCalls(field string, calls []*agentv1.ToolCall, needsID bool, seen map[string]bool) error {
	if err := fault.Entries(field, len(calls), MaxCalls); err != nil {
		return err
	}
	for i, c := range calls {
		if err := fault.Text(fmt.Sprintf("%s[%d].name", field, i), c.GetName(), 128, true); err != nil {
			return err
		}
		if err := fault.Text(fmt.Sprintf("%s[%d].call_id", field, i), c.GetCallId(), 128, needsID); err != nil {
			return err
		}
		if id := c.GetCallId(); id != "" && seen[id] {
			return fault.Invalid(fmt.Sprintf("%s[%d].call_id", field, i), id, "must be unique in its round")
		}
		seen[c.GetCallId()] = true
		if err := tools.CheckNesting(fmt.Sprintf("%s[%d].arguments", field, i), c.GetArguments()); err != nil {
			return err
		}
	}
	return nil
}

// storeRound stores the reply and returns it as a round. If the round was stored before it returns
// the stored one, with the results that it has, and REQUEST_ID_REUSED if the reply differs.
func (s *Service) storeRound(ctx context.Context, req *agentv1.SubmitRoundRequest) (*agentv1.Round, error) {
	return plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.Round]{
		Method: "SubmitRound", AgentID: req.GetAgentId(),
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.Round], error) {
			return decideRound(st, env, req)
		},
		Answer: journal.AnswerOf(func(p *agentv1.RoundSubmitted) *agentv1.Round {
			return p.GetRound()
		}),
	})
}

func decideRound(s *state.State, env journal.Env, req *agentv1.SubmitRoundRequest) (journal.Decision[*agentv1.Round],
	error,
) {
	var d journal.Decision[*agentv1.Round]
	round := roundOf(req)
	a, err := s.Find(env.Actor.Namespace, req.GetAgentId())
	if err != nil {
		return d, err
	}
	// A stored round is returned also after the turn has ended: this round may have ended
	// it.
	if t := a.FindTurn(req.GetTurnId()); t != nil && t.Record.GetRunId() == req.GetRunId() &&
		int(req.GetRoundIndex()) < len(t.Rounds) {
		if err := state.CheckHolder(env.Actor, t.Record); err != nil {
			return d, err
		}
		kept := t.Rounds[req.GetRoundIndex()]
		if !sameRound(kept, round) {
			return d, roundReused(req)
		}
		if kept.GetSettled() {
			d.Reply = kept
			return d, nil
		}
	}
	t, err := s.HeldTurn(env.Actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId())
	if err != nil {
		return d, err
	}
	switch n := len(t.Rounds); {
	case int(req.GetRoundIndex()) < n:
		d.Reply = t.Rounds[req.GetRoundIndex()]
		return d, nil
	case int(req.GetRoundIndex()) > n:
		return d, fault.Invalid("round_index", fmt.Sprint(req.GetRoundIndex()),
			fmt.Sprintf("must be %d, the next round of the turn", n))
	case n > 0 && !t.Rounds[n-1].GetSettled():
		return d, fault.Invalid("round_index", fmt.Sprint(req.GetRoundIndex()),
			fmt.Sprintf("must be %d: that round has calls without a result; submit it again", n-1))
	}
	if sum := req.GetConversationSummary(); sum != nil {
		if _, err := a.SummaryOf(sum); err != nil {
			return d, err
		}
	}
	round.WorkItemId = t.Record.GetWorkItemId()
	round.CreatedAt = timestamppb.New(env.Now)
	d.Events = []*journal.Event{{
		AgentID: req.GetAgentId(), WorkItemID: round.GetWorkItemId(), Payload: &agentv1.RoundSubmitted{Round: round},
	}}
	return d, nil
}

// sameRound reports whether a round that is stored is the one that a request submits: they differ at most in what
// the plane adds. No usage and a usage of nothing are one.
func sameRound(stored, submitted *agentv1.Round) bool {
	return plane.EqualExcept(stored, submitted, "tool_results", "work_item_id", "created_at", "settled", "usage") &&
		plane.EqualExcept(stored.GetUsage(), submitted.GetUsage())
}

// runCalls executes the calls that have no result yet, in order, and records each result
// before the next call.
func (s *Service) runCalls(ctx context.Context, k plane.Key, runID string, round *agentv1.Round) error {
	binding, err := s.binding(ctx, k, round.GetTurnId(), runID)
	if err != nil {
		return err
	}
	deadline := s.deps.Clock.Now().Add(toolcalls.RoundTimeout)
	ended := endingCall(round)
	taken := 0
	for _, r := range round.GetToolResults() {
		taken += proto.Size(r)
	}
	for i := len(round.GetToolResults()); i < len(round.GetToolCalls()); i++ {
		call := round.GetToolCalls()[i]
		out := tools.Outcome{WorkItemID: binding}
		switch {
		case ended != "":
			out.Result = tools.Failed(call, fault.TurnEnded.Newf("the turn ended with %s; submit what is left in the "+
				"next turn", ended))
		default:
			out = s.calls.Call(ctx, tools.Scope{
				Agent: k, RunID: runID, TurnID: round.GetTurnId(), WorkItemID: binding,
				RequestID: tools.CallRequestID(runID, round, i), Remaining: deadline.Sub(s.deps.Clock.Now()),
				NoText: strings.TrimSpace(round.GetText()) == "",
			}, call)
		}
		if err := ctx.Err(); err != nil {
			return fault.From(err) // maybe the cause of the result; a repeated SubmitRound makes the call again
		}
		taken = tools.FitResult(&out, call, taken)
		out.Result.WorkItemId = binding
		tools.ConcealSecrets(out.Result)
		if round, err = s.recordResult(ctx, k, runID, round, i, out); err != nil {
			return err
		}
		binding = out.WorkItemID
		ended = endingCall(round)
	}
	return nil
}

// endingCall returns the name of the call that ended the turn at once, or "".
func endingCall(round *agentv1.Round) string {
	for _, r := range round.GetToolResults() {
		if r.GetToolName() == tools.ToolWaitFor && r.GetStatus() == tools.StatusSuccess {
			return tools.ToolWaitFor
		}
	}
	return ""
}

func (s *Service) binding(ctx context.Context, k plane.Key, turnID, runID string) (string, error) {
	b, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (string, error) {
		t, err := st.HeldTurn(plane.Recorded(access.RunActor(k, runID)), k.ID, turnID, runID)
		if err != nil {
			return "", err
		}
		return t.Record.GetWorkItemId(), nil
	})
	return b, err
}

// recordResult stores the result of one call if the run still holds the turn. After a run
// has become stale at most the call that was executing has an effect.
func (s *Service) recordResult(ctx context.Context, k plane.Key, runID string, round *agentv1.Round, index int,
	out tools.Outcome,
) (*agentv1.Round, error) {
	_, err := plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.Round]{
		Method: "RecordResult", AgentID: k.ID,
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.Round], error) {
			var d journal.Decision[*agentv1.Round]
			if _, err := st.HeldTurn(plane.Recorded(access.RunActor(k, runID)), k.ID, round.GetTurnId(), runID); err !=
				nil {
				return d, err
			}
			d.Events = []*journal.Event{{
				AgentID: k.ID, WorkItemID: out.Result.GetWorkItemId(),
				Payload: &agentv1.ToolResultRecorded{
					TurnId: round.GetTurnId(), RoundIndex: round.GetIndex(), CallIndex: int32(index),
					Result: out.Result, Mutated: out.Mutated, WorkItemId: out.WorkItemID,
				},
			}}
			d.Events = append(d.Events, st.Lookup(k).RecordAnswer(env, tools.CompletedTask(out.Result))...)
			return d, nil
		},
	})
	if err != nil {
		return nil, err
	}
	next := proto.CloneOf(round)
	next.ToolResults = append(next.ToolResults, out.Result)
	return next, nil
}

// settleRound does what follows from a complete round: promotion, the end of the turn,
// interjections. For a round that was settled before it returns the same response. open
// reports whether the turn continues.
func (s *Service) settleRound(ctx context.Context, k plane.Key, turnID, runID string, index int32) (
	resp *agentv1.SubmitRoundResponse, open bool, err error,
) {
	type found struct {
		round   *agentv1.Round
		turn    *agentv1.Turn
		settled *agentv1.RoundSettled
		due     *reminder
	}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (found, error) {
		a, err := st.Find(k.Namespace, k.ID)
		if err != nil {
			return found{}, err
		}
		t := a.FindTurn(turnID)
		if t == nil || int(index) >= len(t.Rounds) {
			return found{}, fault.NotFound.Newf("turn %q has no round %d", turnID, index)
		}
		return found{t.Rounds[index], t.Record, t.Settled[index], dueReminder(t)}, nil
	})
	if err != nil {
		return nil, false, err
	}
	if f.round.GetSettled() {
		rpc.Replayed(ctx)
		open := f.turn.GetState() == agentv1.TurnState_TURN_STATE_OPEN
		return repeatedResponse(f.round, f.settled, f.turn, index == f.turn.GetRounds()-1), open, nil
	}
	promoted, notices, err := s.briefs.Promote(ctx, k, runID, f.round)
	if err != nil {
		return nil, false, err
	}
	how := state.Ending{State: agentv1.TurnState_TURN_STATE_COMPLETED}
	switch {
	case endingCall(f.round) != "":
		how.Reason = agentv1.TurnEndReason_TURN_END_REASON_WAIT_FOR
	case promoted != "":
		how.Reason = agentv1.TurnEndReason_TURN_END_REASON_COMPLETION_PROMOTED
	default:
		if n := s.remind(ctx, k, runID, f.due); n != "" {
			notices = append(notices, n)
		}
	}
	resp, err = plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.SubmitRoundResponse]{
		Method: "SettleRound", AgentID: k.ID,
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.SubmitRoundResponse], error) {
			var d journal.Decision[*agentv1.SubmitRoundResponse]
			if _, err := st.HeldTurn(plane.Recorded(access.RunActor(k, runID)), k.ID, turnID, runID); err != nil {
				return d, err
			}
			a := st.Lookup(k)
			settled := &agentv1.RoundSettled{
				TurnId: turnID, RoundIndex: index, PromotedWorkItemId: promoted,
				Notices: notices,
			}
			d.Events = []*journal.Event{{AgentID: k.ID, WorkItemID: f.round.GetWorkItemId(), Payload: settled}}
			if how.Reason != agentv1.TurnEndReason_TURN_END_REASON_UNSPECIFIED {
				d.Events = a.EndTurn(env, how, d.Events)
				return d, nil
			}
			d.Events, settled.Interjections = a.Interject(env, a.OpenTurn.Record, "", d.Events)
			return d, nil
		},
		Answer: func(events []*journal.Event) (*agentv1.SubmitRoundResponse, error) {
			settled, _ := journal.Find[*agentv1.RoundSettled](events)
			resp := &agentv1.SubmitRoundResponse{
				ToolResults: f.round.GetToolResults(), Interjections: settled.GetInterjections(),
				Notices: settled.GetNotices(), PromotedWorkItemId: settled.GetPromotedWorkItemId(),
			}
			if t := state.EndedTurn(events); t != nil {
				resp.TurnEnded, resp.EndReason = true, t.GetEndReason()
			}
			return resp, nil
		},
	})
	return resp, !resp.GetTurnEnded(), err
}
