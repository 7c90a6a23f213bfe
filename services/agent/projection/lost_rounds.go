package projection

import (
	"context"
	"quartet/services/agent/text"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/prompt"
	"quartet/services/agent/ref"
	"quartet/services/agent/state"
	"quartet/services/agent/tools"
	"quartet/services/agent/transcript"
)

// askTerm bounds how long a context waits for what became of a call. It is said
// to be unknown then.
const outcomeTimeout = 2 * time.Second

// cutOff is a round whose runner was lost before it was answered.
type unansweredRound struct {
	turn  *agentv1.Turn
	round *agentv1.Round
}

// unrecorded is what came of the calls of rounds that no runner was answered
// with, since the last turn that completed: a run was lost, or aborted, while
// they were under way. A call whose result was recorded has it. Of the one that
// was running when the run was lost, its plane is asked by its request id; no
// call is run again, and those after it never were (ARCHITECTURE section 12).
func (s *Service) lostRounds(ctx context.Context, k ref.Agent) ([]prompt.Lost, error) {
	rounds, err := s.unansweredRounds(ctx, k)
	if err != nil || len(rounds) == 0 {
		return nil, err
	}
	has, err := s.calls.Profile(ctx, k)
	if err != nil {
		return nil, err
	}
	var lost []prompt.Lost
	for _, c := range rounds {
		one := prompt.Lost{TurnID: c.turn.GetTurnId(), Index: c.round.GetIndex()}
		for i, call := range c.round.GetToolCalls() {
			what := prompt.LostCall{Name: call.GetName(), Arguments: call.GetArguments()}
			switch n := len(c.round.GetToolResults()); {
			case i < n:
				r := c.round.GetToolResults()[i]
				what.Outcome, what.Summary = text.EnumName(r.GetStatus()), r.GetSummaryText()
			case i == n:
				what.Asked = true
				what.Outcome, what.Summary = s.outcomeOf(ctx, k, has, c, i)
			default:
				what.Outcome = prompt.NotRun
			}
			one.Calls = append(one.Calls, what)
		}
		lost = append(lost, one)
	}
	return lost, nil
}

// cutOffRounds are those rounds, oldest first.
func (s *Service) unansweredRounds(ctx context.Context, k ref.Agent) ([]unansweredRound, error) {
	type found struct {
		rounds []unansweredRound
		at     [][]uint64 // of those that are in memory no more
	}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (found, error) {
		var f found
		a := st.Lookup(k)
		if a == nil {
			return f, nil
		}
		for _, t := range slices.Backward(a.EndedTurns) {
			if t.Record.GetState() == agentv1.TurnState_TURN_STATE_COMPLETED || len(f.rounds) == prompt.MostLost {
				break
			}
			span, known := a.Transcript.Turn(t.Record.GetTurnId())
			if !known || span.Rounds == 0 {
				continue
			}
			c := unansweredRound{turn: t.Record}
			if n := len(t.Rounds); n == span.Rounds {
				c.round = t.Rounds[n-1]
			} else {
				f.at = append(f.at, a.Transcript.Round(span.First+span.Rounds-1))
			}
			f.rounds = append(f.rounds, c)
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
	f.rounds = slices.DeleteFunc(f.rounds, func(c unansweredRound) bool { return c.round.GetSettled() || len(c.round.GetToolCalls()) == 0 })
	slices.Reverse(f.rounds)
	return f.rounds, nil
}

// askFor asks the plane of a call what came of it.
func (s *Service) outcomeOf(ctx context.Context, k ref.Agent, has tools.Profile, c unansweredRound, index int) (status, summary string) {
	call := c.round.GetToolCalls()[index]
	t, err := has.Find(call.GetName())
	if err != nil {
		return prompt.NotRun, ""
	}
	if !t.Mutates {
		return prompt.NoEffect, ""
	}
	if t.NoRecall {
		return prompt.Unknown, ""
	}
	req, err := t.Request(tools.Scope{Agent: k, RunID: c.turn.GetRunId(), TurnID: c.turn.GetTurnId(), WorkItemID: c.turn.GetWorkItemId(), RequestID: tools.CallRequestID(c.turn.GetRunId(), c.round, index)}, call.GetArguments())
	if err != nil {
		return prompt.NotRun, ""
	}
	conn, err := s.deps.Conn(t.Plane)
	if err != nil {
		return prompt.Unknown, ""
	}
	// As the agent and outside of its run, which is over.
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
	return text.EnumName(tools.StatusSuccess), r.GetSummaryText()
}
