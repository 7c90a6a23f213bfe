package agent

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/prompt"
)

// askTerm bounds how long a context waits for what became of a call. It is said
// to be unknown then.
const askTerm = 2 * time.Second

// cutOff is a round whose runner was lost before it was answered.
type cutOff struct {
	turn  *agentv1.Turn
	round *agentv1.Round
}

// unrecorded is what came of the calls of rounds that no runner was answered
// with, since the last turn that completed: a run was lost, or aborted, while
// they were under way. A call whose result was recorded has it. Of the one that
// was running when the run was lost, its plane is asked by its request id; no
// call is run again, and those after it never were (ARCHITECTURE section 12).
func (s *Service) unrecorded(ctx context.Context, k key) ([]prompt.Lost, error) {
	rounds, err := s.cutOffRounds(ctx, k)
	if err != nil || len(rounds) == 0 {
		return nil, err
	}
	has, err := s.profile(ctx, k)
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
				what.Outcome, what.Summary = r.GetStatus(), r.GetSummaryText()
			case i == n:
				what.Asked = true
				what.Outcome, what.Summary = s.askFor(ctx, k, has, c, i)
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
func (s *Service) cutOffRounds(ctx context.Context, k key) ([]cutOff, error) {
	type found struct {
		rounds []cutOff
		at     [][]uint64 // of those that are in memory no more
	}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *State) (found, error) {
		var f found
		a := st.lookup(k)
		if a == nil {
			return f, nil
		}
		for _, t := range slices.Backward(a.turns) {
			if t.rec.GetState() == agentv1.TurnState_TURN_STATE_COMPLETED || len(f.rounds) == prompt.MostLost {
				break
			}
			span, known := a.transcript.span(t.rec.GetTurnId())
			if !known || span.count == 0 {
				continue
			}
			c := cutOff{turn: t.rec}
			if n := len(t.rounds); n == span.count {
				c.round = t.rounds[n-1]
			} else {
				f.at = append(f.at, a.transcript.round(span.from+span.count-1))
			}
			f.rounds = append(f.rounds, c)
		}
		return f, nil
	})
	if err != nil {
		return nil, err
	}
	back, err := s.readRounds(ctx, k, f.at)
	if err != nil {
		return nil, err
	}
	for i := range f.rounds {
		if f.rounds[i].round == nil {
			f.rounds[i].round, back = back[0], back[1:]
		}
	}
	f.rounds = slices.DeleteFunc(f.rounds, func(c cutOff) bool { return c.round.GetSettled() || len(c.round.GetToolCalls()) == 0 })
	slices.Reverse(f.rounds)
	return f.rounds, nil
}

// askFor asks the plane of a call what came of it.
func (s *Service) askFor(ctx context.Context, k key, has profile, c cutOff, index int) (status, summary string) {
	call := c.round.GetToolCalls()[index]
	t, err := has.find(call.GetName())
	if err != nil {
		return prompt.NotRun, ""
	}
	if !t.mutates {
		return prompt.NoEffect, ""
	}
	if t.forgets {
		return prompt.Unknown, ""
	}
	req, err := t.prepare(callScope{agent: k, runID: c.turn.GetRunId(), turnID: c.turn.GetTurnId(), binding: c.turn.GetWorkItemId(), requestID: callID(c.turn.GetRunId(), c.round, index)}, call.GetArguments())
	if err != nil {
		return prompt.NotRun, ""
	}
	conn, err := s.deps.Conn(t.plane)
	if err != nil {
		return prompt.Unknown, ""
	}
	// As the agent and outside of its run, which is over.
	ctx, cancel := context.WithTimeout(rpc.Recall(rpc.WithActor(ctx, runActor(k, ""))), askTerm)
	defer cancel()
	reply := t.reply()
	if err := conn.Invoke(ctx, t.method, req, reply); err != nil {
		switch f := fault.From(err); f.Code() {
		case codes.NotFound, codes.InvalidArgument, codes.PermissionDenied, codes.FailedPrecondition:
			return prompt.NotRun, "" // a refusal is not remembered, and changed nothing
		default:
			return prompt.Unknown, ""
		}
	}
	r, err := succeeded(call, t, reply)
	if err != nil {
		return prompt.Unknown, ""
	}
	return statusSuccess, r.GetSummaryText()
}
