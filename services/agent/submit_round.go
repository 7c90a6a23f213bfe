package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/proto"
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
	unlock := s.rounds.lock(req.GetTurnId())
	defer unlock()

	round, err := s.keepRound(ctx, req)
	if err != nil {
		return nil, err
	}
	k := key{actor.Namespace, req.GetAgentId()}
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
	}
	return nil
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
	round := &agentv1.Round{
		TurnId: req.GetTurnId(), Index: req.GetRoundIndex(), Text: req.GetText(), ToolCalls: req.GetToolCalls(),
		LocalToolResults: req.GetLocalToolResults(), Usage: req.GetUsage(),
	}
	a, err := s.agent(env.Actor.Namespace, req.GetAgentId())
	if err != nil {
		return d, err
	}
	// A round that was kept before is answered also after the turn has ended:
	// it may have been this very round that ended it.
	if t := a.find(req.GetTurnId()); t != nil && t.rec.GetRunId() == req.GetRunId() && int(req.GetRoundIndex()) < len(t.rounds) {
		kept := t.rounds[req.GetRoundIndex()]
		if !sameRound(kept, round) {
			return d, fault.RequestIDReused.Newf("round %d of turn %q was submitted before with another text or other calls", req.GetRoundIndex(), req.GetTurnId()).
				With("turn_id", req.GetTurnId()).With("round_index", fmt.Sprint(req.GetRoundIndex()))
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
	if a.GetText() != b.GetText() || len(a.GetToolCalls()) != len(b.GetToolCalls()) {
		return false
	}
	for i, c := range a.GetToolCalls() {
		if !proto.Equal(c, b.GetToolCalls()[i]) {
			return false
		}
	}
	return true
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
	for i := len(round.GetToolResults()); i < len(round.GetToolCalls()); i++ {
		call := round.GetToolCalls()[i]
		out := outcome{bind: binding}
		switch {
		case ended != "":
			out.result = failed(call, fault.TurnEnded.Newf("the turn ended with %s; submit what is left in the next turn", ended))
		default:
			out = s.call(ctx, callScope{
				agent: k, runID: runID, turnID: round.GetTurnId(), binding: binding,
				requestID: fmt.Sprintf("%s/%d/%d", runID, round.GetIndex(), i), left: time.Until(deadline), silent: strings.TrimSpace(round.GetText()) == "",
			}, call)
		}
		if err := ctx.Err(); err != nil {
			return fault.From(err) // the result may be the deadline's; the repetition asks again
		}
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
	b, _, err := plane.View(ctx, s.engine, k.id, func(st *State) (string, error) {
		t, err := st.held(k.namespace, k.id, turnID, runID)
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
		Method: "RecordResult", AgentID: k.id,
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.Round], error) {
			var d journal.Decision[*agentv1.Round]
			if _, err := st.held(k.namespace, k.id, round.GetTurnId(), runID); err != nil {
				return d, err
			}
			d.Events = []*journal.Event{{
				AgentID: k.id, WorkItemID: out.result.GetWorkItemId(),
				Payload: &agentv1.ToolResultRecorded{
					TurnId: round.GetTurnId(), RoundIndex: round.GetIndex(), CallIndex: int32(index),
					Result: out.result, Mutated: out.mutated, WorkItemId: out.bind,
				},
			}}
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
	}
	f, _, err := plane.View(ctx, s.engine, k.id, func(st *State) (found, error) {
		a, err := st.agent(k.namespace, k.id)
		if err != nil {
			return found{}, err
		}
		t := a.find(turnID)
		if t == nil || int(index) >= len(t.rounds) {
			return found{}, fault.NotFound.Newf("turn %q has no round %d", turnID, index)
		}
		return found{t.rounds[index], t.rec, t.settled[index]}, nil
	})
	if err != nil {
		return nil, false, err
	}
	if f.round.GetSettled() {
		rpc.Replayed(ctx)
		open := f.turn.GetState() == agentv1.TurnState_TURN_STATE_OPEN
		// What was interjected is handed over once more: the first answer may
		// never have arrived (SPEC A9).
		resp := &agentv1.SubmitRoundResponse{
			ToolResults: f.round.GetToolResults(), Interjections: f.settled.GetInterjections(),
			Notices: f.settled.GetNotices(), PromotedWorkItemId: f.settled.GetPromotedWorkItemId(),
		}
		if !open && index == f.turn.GetRounds()-1 {
			resp.TurnEnded, resp.EndReason = true, f.turn.GetEndReason()
		}
		return resp, open, nil
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
	}
	resp, err = plane.Do(ctx, s.engine, plane.Command[*State, *agentv1.SubmitRoundResponse]{
		Method: "SettleRound", AgentID: k.id,
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.SubmitRoundResponse], error) {
			var d journal.Decision[*agentv1.SubmitRoundResponse]
			if _, err := st.held(k.namespace, k.id, turnID, runID); err != nil {
				return d, err
			}
			a := st.agents[k]
			settled := &agentv1.RoundSettled{TurnId: turnID, RoundIndex: index, PromotedWorkItemId: promoted, Notices: notices}
			d.Events = []*journal.Event{{AgentID: k.id, WorkItemID: f.round.GetWorkItemId(), Payload: settled}}
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
	for _, m := range a.interjections() {
		if m.GetMessageId() == but {
			continue
		}
		i := moved(m, env, agentv1.MessageState_MESSAGE_STATE_INTERJECTED, "")
		i.TurnId = t.GetTurnId()
		events = append(events, messageEvent(i, &agentv1.MessageInterjected{Message: i}))
		handed = append(handed, i)
	}
	return events, handed
}

// promote makes the round's text the report of the one item completed in it
// (SPEC W7). It may run again after a crash: an item has one report for ever.
func (s *Service) promote(ctx context.Context, k key, runID string, round *agentv1.Round) (itemID string, notices []string, err error) {
	completions := 0
	candidate := ""
	seen := map[string]bool{}
	for _, r := range round.GetToolResults() {
		if r.GetToolName() != toolCompleteWorkItem || r.GetStatus() != statusSuccess {
			continue
		}
		f := r.GetResult().GetFields()
		item := f["work_item"].GetStructValue().GetFields()
		again := f["already_completed"].GetBoolValue()
		id := item["work_item_id"].GetStringValue()
		if again && (item["result_brief_id"].GetStringValue() != "" || seen[id]) {
			continue // it has its report, or this very round completed it
		}
		seen[id] = true
		completions++
		if again || f["was_current"].GetBoolValue() {
			candidate = id
		}
	}
	text := strings.TrimSpace(round.GetText())
	switch {
	case completions == 0:
		return "", nil, nil
	case completions > 1:
		return "", []string{"multiple_completions: the round completed several work items, so its text is the report of none of them"}, nil
	case text == "":
		return "", []string{"report_missing: write the report as text in the same round as CompleteWorkItem; completing the item again with text adds it"}, nil
	case candidate == "":
		return "", []string{"not_current: the completed work item was not in focus, so the text is not its report"}, nil
	}
	done, err := s.deps.Work.PromoteReport(s.asRun(ctx, k, runID), &promoteRequest{
		AgentId: k.id, WorkItemId: candidate, Text: round.GetText(), TurnId: round.GetTurnId(),
		RequestId: fmt.Sprintf("%s/%d/promote", runID, round.GetIndex()),
	})
	if err != nil {
		return "", nil, err
	}
	if done.GetWorkItem().GetResultBriefId() == "" {
		return "", nil, nil
	}
	return candidate, nil, nil
}

// recoverRound finishes what a crash or a lost runner left of the newest round:
// a completion that is recorded keeps its report. Calls without a result are
// not run again (SPEC A6). It gives the open turn of the run, nil if it ended.
func (s *Service) recoverRound(ctx context.Context, k key, runID string) (*agentv1.Turn, error) {
	type found struct {
		turn  *agentv1.Turn
		round *agentv1.Round
	}
	f, _, err := plane.View(ctx, s.engine, k.id, func(st *State) (found, error) {
		a := st.agents[k]
		if a == nil || a.turn == nil || a.turn.rec.GetRunId() != runID {
			return found{}, nil
		}
		f := found{turn: a.turn.rec}
		if n := len(a.turn.rounds); n > 0 && !a.turn.rounds[n-1].GetSettled() {
			f.round = a.turn.rounds[n-1]
		}
		return f, nil
	})
	if err != nil || f.round == nil {
		return f.turn, err
	}
	_, _, err = s.promote(ctx, k, runID, f.round)
	return f.turn, err
}

// asRun makes calls to other planes act as the agent in its run (SPEC X4).
func (s *Service) asRun(ctx context.Context, k key, runID string) context.Context {
	return rpc.WithActor(ctx, runActor(k, runID))
}

func runActor(k key, runID string) rpc.Actor {
	return rpc.Actor{Namespace: k.namespace, Principal: runPrincipal(k), Role: rpc.RoleAgent, AgentID: k.id, RunID: runID}
}

// runPrincipal is the name that an agent's calls go by; request ids are its own.
func runPrincipal(k key) string { return "agent/" + k.id }
