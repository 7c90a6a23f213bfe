package projection

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/utf8cut"
	"quartet/services/agent/access"
	"quartet/services/agent/prompt"
	"quartet/services/agent/state"
	"quartet/services/agent/tools"
	"quartet/services/agent/transcript"
)

// outcomeTimeout bounds how long a context waits for the outcome of a call. After that
// the outcome is shown as unknown.
const outcomeTimeout = 2 * time.Second

// maxAttemptRounds is how many rounds of an earlier attempt a context considers, the newest
// ones; resultExcerpt is how much of a result, in bytes.
const (
	maxAttemptRounds = 20
	resultExcerpt    = 512
)

// triedRound is a round of a turn that did not complete.
type triedRound struct {
	turn  *agentv1.Turn
	round *agentv1.Round
}

// attempts returns what was tried before: the calls of the rounds that triedRounds returns. The
// messages of these turns may differ, since a tick whose turn was lost is replaced by a new one. The
// outcome of a call is its recorded result. The first call of a round without a result was executing
// when the run was lost: its plane is asked for the outcome, by the request id of the call. The calls
// after it have not run. attempts executes no call again.
func (s *Service) attempts(ctx context.Context, k plane.Key) ([]prompt.Attempt, error) {
	rounds, err := s.triedRounds(ctx, k)
	if err != nil || len(rounds) == 0 {
		return nil, err
	}
	profile, err := s.calls.Profile(ctx, k)
	if err != nil {
		return nil, err
	}
	var attempts []prompt.Attempt
	for _, c := range rounds {
		attempt := prompt.Attempt{
			TurnID: c.turn.GetTurnId(), Index: c.round.GetIndex(), Ended: pbjson.EnumText(c.turn.GetEndReason()),
			Calls: localCalls(c.round),
		}
		results := c.round.GetToolResults()
		for i, call := range c.round.GetToolCalls() {
			tried := prompt.Tried{Name: call.GetName(), Arguments: call.GetArguments()}
			switch {
			case i < len(results):
				tried.Outcome, tried.Summary = pbjson.EnumText(results[i].GetStatus()), results[i].GetSummaryText()
				tried.Result = excerpt(results[i])
			case i == len(results):
				tried.Asked = true
				tried.Outcome, tried.Summary = s.outcomeOf(ctx, k, profile, c, i)
			default:
				tried.Outcome = prompt.NotRun
			}
			attempt.Calls = append(attempt.Calls, tried)
		}
		attempts = append(attempts, attempt)
	}
	return attempts, nil
}

// localCalls returns the calls of a round that its runner executed. The outcome of a call without a
// result is prompt.Unknown: the runner started it and was lost before it reported the result.
func localCalls(r *agentv1.Round) []prompt.Tried {
	var out []prompt.Tried
	arguments := map[string]*structpb.Struct{}
	for _, c := range r.GetLocalToolCalls() {
		arguments[c.GetCallId()] = c.GetArguments()
	}
	known := map[string]bool{}
	for _, res := range r.GetLocalToolResults() {
		known[res.GetCallId()] = true
		out = append(out, prompt.Tried{
			Name: res.GetToolName(), Arguments: arguments[res.GetCallId()],
			Outcome: pbjson.EnumText(res.GetStatus()), Summary: res.GetSummaryText(), Result: excerpt(res),
		})
	}
	for _, c := range r.GetLocalToolCalls() {
		if !known[c.GetCallId()] {
			out = append(out, prompt.Tried{
				Name: c.GetName(), Arguments: c.GetArguments(), Outcome: prompt.Unknown,
				Asked: true,
			})
		}
	}
	return out
}

// excerpt returns the beginning of a call's result as JSON.
func excerpt(r *agentv1.ToolResult) string {
	if len(r.GetResult().GetFields()) == 0 {
		return ""
	}
	raw, err := pbjson.Append(nil, r.GetResult())
	if err != nil {
		return ""
	}
	return utf8cut.Bytes(string(raw), resultExcerpt)
}

// triedRounds returns the rounds with calls of the turns that ended since the last one that
// completed, oldest first: of the newest prompt.MostLost such turns, and of each the newest
// maxAttemptRounds rounds. Calls that a runner started and of which it reported nothing are a
// round of their own.
func (s *Service) triedRounds(ctx context.Context, k plane.Key) ([]triedRound, error) {
	type found struct {
		rounds []triedRound
		at     [][]uint64 // positions of rounds that are not in memory
	}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (found, error) {
		var f found
		a := st.Lookup(k)
		if a == nil {
			return f, nil
		}
		turns := 0
		for t := range a.EndedTurns.Backward() {
			if t.Record.GetState() == agentv1.TurnState_TURN_STATE_COMPLETED || turns == prompt.MostLost {
				break
			}
			span, known := a.Transcript.Turn(t.Record.GetTurnId())
			started := a.Transcript.StartedCalls(t.Record.GetTurnId())
			if !known || span.Rounds+len(started) == 0 {
				continue
			}
			turns++
			if len(started) > 0 {
				f.at = append(f.at, started)
				f.rounds = append(f.rounds, triedRound{turn: t.Record})
			}
			if span.Rounds == 0 {
				continue
			}
			for n := span.Rounds - 1; n >= max(0, span.Rounds-maxAttemptRounds); n-- {
				c := triedRound{turn: t.Record}
				if len(t.Rounds) == span.Rounds {
					c.round = t.Rounds[n]
				} else {
					f.at = append(f.at, a.Transcript.Round(span.First+n))
				}
				f.rounds = append(f.rounds, c)
			}
		}
		return f, nil
	})
	if err != nil {
		return nil, err
	}
	back, err := transcript.Read(ctx, s.engine.For(k.Namespace, k.ID), f.at)
	if err != nil {
		return nil, err
	}
	for i := range f.rounds {
		if f.rounds[i].round == nil {
			f.rounds[i].round, back = back[0], back[1:]
		}
	}
	f.rounds = slices.DeleteFunc(f.rounds, func(c triedRound) bool {
		return len(c.round.GetToolCalls())+len(c.round.GetLocalToolCalls())+len(c.round.GetLocalToolResults()) == 0
	})
	slices.Reverse(f.rounds)
	return f.rounds, nil
}

// outcomeOf returns the outcome of a call, which it does not execute again. A tool that changes
// nothing has prompt.NoEffect, and a call that makes no valid request prompt.NotRun. For others
// outcomeOf asks the plane, which looks in its request memory. Refusals are not remembered, so
// NOT_FOUND, INVALID_ARGUMENT, PERMISSION_DENIED and FAILED_PRECONDITION mean prompt.NotRun. The
// status is prompt.Unknown if the plane cannot answer within outcomeTimeout or keeps no memory of
// the tool's calls. Only a call that succeeded has a summary.
func (s *Service) outcomeOf(ctx context.Context, k plane.Key, profile tools.Profile, c triedRound, index int) (status,
	summary string,
) {
	call := c.round.GetToolCalls()[index]
	t, err := profile.Find(call.GetName())
	if err != nil {
		return prompt.NotRun, ""
	}
	if !t.Mutates {
		return prompt.NoEffect, ""
	}
	if t.NoRecall {
		return prompt.Unknown, ""
	}
	req, err := t.Request(tools.Scope{
		Agent: k, RunID: c.turn.GetRunId(), TurnID: c.turn.GetTurnId(),
		WorkItemID: c.turn.GetWorkItemId(), RequestID: tools.CallRequestID(c.turn.GetRunId(), c.round, index),
	},
		call.GetArguments())
	if err != nil {
		return prompt.NotRun, ""
	}
	conn, err := s.deps.Conn(t.Plane)
	if err != nil {
		return prompt.Unknown, ""
	}
	// As the agent, but outside of its run, which has ended.
	ctx, cancel := context.WithTimeout(rpc.Recall(rpc.WithActor(ctx, access.RunActor(k, ""))), outcomeTimeout)
	defer cancel()
	reply := t.NewResponse()
	if err := conn.Invoke(ctx, t.Method, req, reply); err != nil {
		switch f := fault.From(err); f.Code() {
		case codes.NotFound, codes.InvalidArgument, codes.PermissionDenied, codes.FailedPrecondition:
			return prompt.NotRun, "" // a refusal is not remembered, and changed nothing
		default:
			return prompt.Unknown, ""
		}
	}
	r, err := tools.Succeeded(call, t, reply)
	if err != nil {
		return prompt.Unknown, ""
	}
	return pbjson.EnumText(tools.StatusSuccess), r.GetSummaryText()
}
