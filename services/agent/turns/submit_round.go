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

	// One call at a time works on the rounds of a turn.
	unlock := s.roundLocks.Lock(req.GetTurnId())
	defer unlock()

	k := plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()}
	ctx, span := s.startSpan(ctx, k, req.GetTurnId(), "round", attribute.Int("quartet.round", int(req.GetRoundIndex())),
		attribute.Int64("gen_ai.usage.input_tokens", req.GetUsage().GetInputTokens()),
		attribute.Int64("gen_ai.usage.output_tokens", req.GetUsage().GetOutputTokens()))
	defer span.End()

	// Return the first response of a round that is no longer in memory.
	replayed, resp, err := s.replayedRound(ctx, plane.Recorded(actor), req)
	if err != nil {
		return nil, err
	}
	if resp != nil {
		return resp, s.revealSecrets(ctx, k, req.GetRunId(), replayed, resp)
	}

	// Store the round, execute its calls, and settle it.
	round, err := s.storeRound(ctx, req)
	if err != nil {
		return nil, err
	}
	if !round.GetSettled() {
		release := s.deps.Leases.Hold(k, req.GetRunId())
		defer release()
		if err := s.runCalls(ctx, k, req.GetRunId(), round); err != nil {
			return nil, plane.Stored(err)
		}
	}
	resp, turnOpen, err := s.settleRound(ctx, k, req.GetTurnId(), req.GetRunId(), req.GetRoundIndex())
	if err != nil {
		return nil, plane.Stored(err)
	}

	if err := s.revealSecrets(ctx, k, req.GetRunId(), round, resp); err != nil {
		return nil, plane.Stored(err)
	}
	if turnOpen {
		resp.LeaseExpiresAt = timestamppb.New(s.deps.Leases.Arm(k, req.GetRunId()))
	}
	return resp, nil
}

// validateRound checks what needs no state.
func validateRound(req *agentv1.SubmitRoundRequest) error {
	if req.GetRoundIndex() < 0 {
		return fault.Invalid("round_index", fmt.Sprint(req.GetRoundIndex()), "must be 0 or more")
	}
	if err := fault.TextBytes("text", req.GetText(), fault.MaxRoundTextBytes, false); err != nil {
		return err
	}
	sum := req.GetConversationSummary()
	if sum != nil {
		if err := fault.First(
			fault.TextBytes("conversation_summary.text", sum.GetText(), state.MaxSummaryBytes, true),
			fault.NotBlank("conversation_summary.text", sum.GetText()),
			fault.Text("conversation_summary.through_turn_id", sum.GetThroughTurnId(), fault.MaxNameChars, false),
		); err != nil {
			return err
		}
	}

	seen := map[string]bool{} // ids of calls
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

// decideRound is the rule of SubmitRound: it stores the reply as the turn's next round.
func decideRound(s *state.State, env journal.Env, req *agentv1.SubmitRoundRequest) (journal.Decision[*agentv1.Round],
	error,
) {
	var d journal.Decision[*agentv1.Round]
	round := roundOf(req)
	a, err := s.Find(env.Actor.Namespace, req.GetAgentId())
	if err != nil {
		return d, err
	}
	index := int(req.GetRoundIndex())

	// A stored round is returned also after the turn has ended: this round may have ended it.
	stored := a.FindTurn(req.GetTurnId())
	if stored != nil && stored.Record.GetRunId() == req.GetRunId() && index < len(stored.Rounds) {
		if err := state.CheckHolder(env.Actor, stored.Record); err != nil {
			return d, err
		}
		if !sameRound(stored.Rounds[index], round) {
			return d, roundReused(req)
		}
		if stored.Rounds[index].GetSettled() {
			d.Reply = stored.Rounds[index]
			return d, nil
		}
	}

	// Otherwise the run must hold the turn, and the round be the newest one or the next.
	t, err := s.HeldTurn(env.Actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId())
	if err != nil {
		return d, err
	}
	n := len(t.Rounds)
	switch {
	case index < n:
		d.Reply = t.Rounds[index]
		return d, nil
	case index > n:
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

// runCalls executes the calls that have no result yet, in order, and records each result
// before the next call.
func (s *Service) runCalls(ctx context.Context, k plane.Key, runID string, round *agentv1.Round) error {
	binding, err := s.binding(ctx, k, round.GetTurnId(), runID)
	if err != nil {
		return err
	}
	deadline := s.deps.Clock.Now().Add(toolcalls.RoundTimeout)
	endedBy := endingCall(round)
	resultBytes := 0 // of all results so far
	for _, r := range round.GetToolResults() {
		resultBytes += proto.Size(r)
	}

	for i := len(round.GetToolResults()); i < len(round.GetToolCalls()); i++ {
		// Execute the call, unless one before it has ended the turn.
		call := round.GetToolCalls()[i]
		out := tools.Outcome{WorkItemID: binding}
		if endedBy != "" {
			out.Result = tools.Failed(call, fault.TurnEnded.Newf("the turn ended with %s; submit what is left in the "+
				"next turn", endedBy))
		} else {
			out = s.deps.Calls.Call(ctx, tools.Scope{
				Agent: k, RunID: runID, TurnID: round.GetTurnId(), WorkItemID: binding,
				RequestID: tools.CallRequestID(runID, round, i), Remaining: deadline.Sub(s.deps.Clock.Now()),
				NoText: strings.TrimSpace(round.GetText()) == "",
			}, call)
		}
		if err := ctx.Err(); err != nil {
			return fault.From(err) // maybe the cause of the result; a repeated SubmitRound makes the call again
		}

		// Record its result.
		resultBytes = tools.FitResult(&out, call, resultBytes)
		out.Result.WorkItemId = binding
		tools.ConcealSecrets(out.Result)
		round, err = s.recordResult(ctx, k, runID, round, i, out)
		if err != nil {
			return err
		}
		binding = out.WorkItemID
		endedBy = endingCall(round)
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

// binding returns the item to which the turn of a run is bound, "" for none.
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
			_, err := st.HeldTurn(plane.Recorded(access.RunActor(k, runID)), k.ID, round.GetTurnId(), runID)
			if err != nil {
				return d, err
			}
			d.Events = []*journal.Event{{
				AgentID: k.ID, WorkItemID: out.Result.GetWorkItemId(),
				Payload: &agentv1.ToolResultRecorded{
					TurnId: round.GetTurnId(), RoundIndex: round.GetIndex(), CallIndex: int32(index),
					Result: out.Result, Mutated: out.Mutated, WorkItemId: out.WorkItemID,
				},
			}}
			// If the call ran a command to its end, the agent gets no message with the same result.
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
		settled *agentv1.RoundSettled // nil: it is not settled
		due     *reminder
	}

	// Return the first response of a round that is settled.
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

	// Promote the report of a completed item.
	promoted, notices, err := s.deps.Briefs.Promote(ctx, k, runID, f.round)
	if err != nil {
		return nil, false, err
	}

	// A wait or a promoted report ends the turn; otherwise a reminder may be due.
	how := state.Ending{State: agentv1.TurnState_TURN_STATE_COMPLETED}
	switch {
	case endingCall(f.round) != "":
		how.Reason = agentv1.TurnEndReason_TURN_END_REASON_WAIT_FOR
	case promoted != "":
		how.Reason = agentv1.TurnEndReason_TURN_END_REASON_COMPLETION_PROMOTED
	default:
		if notice := s.remind(ctx, k, runID, f.due); notice != "" {
			notices = append(notices, notice)
		}
	}

	// Settle the round, and in the same frame end the turn or interject messages.
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
