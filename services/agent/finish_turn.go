package agent

import (
	"context"
	"fmt"
	"quartet/services/agent/lane"
	"quartet/services/agent/ref"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// FinishTurn ends a turn on its runner's word (SPEC A6). Once the turn has
// ended it changes nothing.
func (s *Service) FinishTurn(ctx context.Context, req *agentv1.FinishTurnRequest) (*agentv1.FinishTurnResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRun(actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId()); err != nil {
		return nil, err
	}
	if err := fault.TextBytes("message", req.GetMessage(), fault.MaxFreeTextBytes, false); err != nil {
		return nil, err
	}
	how, err := endingOf(req)
	if err != nil {
		return nil, err
	}
	k := ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()}
	ctx, span := s.within(ctx, k, req.GetTurnId(), "finish")
	defer span.End()
	unlock := s.rounds.Lock(req.GetTurnId())
	defer unlock()
	if how.state == agentv1.TurnState_TURN_STATE_COMPLETED {
		// A round that was cut short by a crash may have earned a report.
		if _, how.reported, err = s.recoverRound(ctx, k, req.GetRunId()); err != nil {
			return nil, err
		}
	}
	resp, err := plane.Do(ctx, s.engine, plane.Command[*State, *agentv1.FinishTurnResponse]{
		Method: "FinishTurn", AgentID: req.GetAgentId(),
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.FinishTurnResponse], error) {
			return decideFinish(st, env, req, how)
		},
		Answer: answerFinish,
	})
	if err != nil {
		return nil, err
	}
	s.leases.disarm(k, req.GetRunId())
	return resp, nil
}

// ending is how a turn ends.
type ending struct {
	state      agentv1.TurnState
	reason     string
	message    string
	requeue    bool // the message goes back to its lane
	uncounted  bool // and the attempt does not count
	quarantine bool // the message is put aside at once
	dropTick   bool // but a tick is not offered again
	reported   bool // what was said last is an item's report, which has its brief
}

func endingOf(req *agentv1.FinishTurnRequest) (ending, error) {
	e := ending{state: agentv1.TurnState_TURN_STATE_FAILED, message: req.GetMessage()}
	switch req.GetOutcome() {
	case agentv1.TurnOutcome_TURN_OUTCOME_UNSPECIFIED, agentv1.TurnOutcome_TURN_OUTCOME_COMPLETED:
		e.state, e.reason = agentv1.TurnState_TURN_STATE_COMPLETED, "finished"
	case agentv1.TurnOutcome_TURN_OUTCOME_RETRYABLE:
		e.reason, e.requeue = "retryable", true
	case agentv1.TurnOutcome_TURN_OUTCOME_RELEASED:
		e.reason, e.requeue, e.uncounted = "released", true, true
	case agentv1.TurnOutcome_TURN_OUTCOME_FATAL:
		e.reason, e.quarantine = "fatal", true
	case agentv1.TurnOutcome_TURN_OUTCOME_BASELINE_OVER_BUDGET:
		e.reason, e.quarantine = "baseline_over_budget", true
	default:
		return e, fault.Invalid("outcome", req.GetOutcome().String(), "must be completed, retryable, released, fatal or baseline_over_budget")
	}
	return e, nil
}

func decideFinish(s *State, env journal.Env, req *agentv1.FinishTurnRequest, how ending) (journal.Decision[*agentv1.FinishTurnResponse], error) {
	var d journal.Decision[*agentv1.FinishTurnResponse]
	a, err := s.agent(env.Actor.Namespace, req.GetAgentId())
	if err != nil {
		return d, err
	}
	_, err = s.held(env.Actor.Namespace, req.GetAgentId(), req.GetTurnId(), req.GetRunId())
	if reason := fault.From(err); err != nil && reason.Reason() == fault.TurnEnded {
		d.Reply = &agentv1.FinishTurnResponse{Turn: a.find(req.GetTurnId()).rec}
		return d, nil
	}
	if err != nil {
		return d, err
	}
	d.Events = a.endEvents(env, how, nil)
	return d, nil
}

// endEvents is the one rule for every end of a turn: what becomes of the turn,
// of its message, and of what was interjected.
func (a *agentState) endEvents(env journal.Env, how ending, before []*journal.Event) []*journal.Event {
	t := proto.CloneOf(a.turn.rec)
	t.State, t.EndReason, t.EndedAt = how.state, how.reason, timestamppb.New(env.Now)
	events := before
	if how.state != agentv1.TurnState_TURN_STATE_COMPLETED && how.reason != agentDeleted {
		// What was interjected into a run that failed or was aborted is heard again
		// (SPEC A9): an abort takes the turn's own message out, and no other words.
		// It goes to the front of the lane;
		// last first, since each goes to the front of its band, and before the
		// message itself, which may stand before them in theirs (SPEC A5).
		ids := t.GetInterjectedMessageIds()
		for i := len(ids) - 1; i >= 0; i-- {
			if im := a.lane.Get(ids[i]); im.GetState() == agentv1.MessageState_MESSAGE_STATE_INTERJECTED {
				q := lane.WithState(im, env, agentv1.MessageState_MESSAGE_STATE_QUEUED, "turn_"+how.reason)
				events = append(events, lane.Event(q, &agentv1.MessageRequeued{Message: q}))
			}
		}
	}
	m := a.lane.Get(t.GetMessageId())
	switch {
	case how.quarantine:
		q := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_QUARANTINED, reasonOf(how))
		events = append(events, lane.Event(q, &agentv1.MessageQuarantined{Message: q}))
	case how.dropTick && m.GetTick() != nil:
		events = append(events, lane.Dropped(m, env, reasonOf(how)))
	case how.requeue && (m.GetAttempts() < lane.MaxAttempts || how.uncounted):
		q := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_QUEUED, reasonOf(how))
		if how.uncounted {
			q.Attempts--
		}
		events = append(events, lane.Event(q, &agentv1.MessageRequeued{Message: q}))
	case how.requeue:
		q := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_QUARANTINED, fmt.Sprintf("%s, attempt %d of %d", reasonOf(how), m.GetAttempts(), lane.MaxAttempts))
		events = append(events, lane.Event(q, &agentv1.MessageQuarantined{Message: q}))
	case how.state == agentv1.TurnState_TURN_STATE_ABORTED:
		q := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_ABORTED, reasonOf(how))
		events = append(events, lane.Event(q, &agentv1.MessageAborted{Message: q}))
	default:
		q := lane.WithState(m, env, agentv1.MessageState_MESSAGE_STATE_PROCESSED, how.reason)
		events = append(events, lane.Event(q, &agentv1.MessageProcessed{Message: q}))
	}
	events = append(events, turnEvent(t, turnPayload(t)))
	if how.reported {
		return events
	}
	return append(events, a.concluded(env, t, events)...)
}

func reasonOf(how ending) string {
	if how.message == "" {
		return how.reason
	}
	return how.reason + ": " + how.message
}

func turnPayload(t *agentv1.Turn) proto.Message {
	switch t.GetState() {
	case agentv1.TurnState_TURN_STATE_FAILED:
		return &agentv1.TurnFailed{Turn: t}
	case agentv1.TurnState_TURN_STATE_INTERRUPTED:
		return &agentv1.TurnInterrupted{Turn: t}
	case agentv1.TurnState_TURN_STATE_ABORTED:
		return &agentv1.TurnAborted{Turn: t}
	case agentv1.TurnState_TURN_STATE_UNSPECIFIED, agentv1.TurnState_TURN_STATE_OPEN, agentv1.TurnState_TURN_STATE_COMPLETED:
	}
	return &agentv1.TurnCompleted{Turn: t}
}

func answerFinish(events []*journal.Event) (*agentv1.FinishTurnResponse, error) {
	if t := endedTurn(events); t != nil {
		return &agentv1.FinishTurnResponse{Turn: t}, nil
	}
	return nil, fmt.Errorf("agent: no end of a turn among %d events", len(events))
}

// endedTurn finds the turn whose end is among events.
func endedTurn(events []*journal.Event) *agentv1.Turn {
	for _, ev := range events {
		switch p := ev.Payload.(type) {
		case *agentv1.TurnCompleted:
			return p.GetTurn()
		case *agentv1.TurnFailed:
			return p.GetTurn()
		case *agentv1.TurnInterrupted:
			return p.GetTurn()
		case *agentv1.TurnAborted:
			return p.GetTurn()
		}
	}
	return nil
}

// endTurn ends a run that is still open, on the plane's own account.
func (s *Service) endTurn(ctx context.Context, k key, turn *agentv1.Turn, how ending) error {
	_, err := plane.Do(ctx, s.engine, plane.Command[*State, *agentv1.Turn]{
		Method: "EndTurn", AgentID: k.ID, Actor: plane.System(k.Namespace),
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.Turn], error) {
			var d journal.Decision[*agentv1.Turn]
			a := st.lookup(k)
			if a == nil || a.turn == nil || a.turn.rec.GetRunId() != turn.GetRunId() {
				return d, nil // it ended by itself
			}
			d.Events = a.endEvents(env, how, nil)
			return d, nil
		},
		Answer: func(events []*journal.Event) (*agentv1.Turn, error) { return endedTurn(events), nil },
	})
	return err
}
