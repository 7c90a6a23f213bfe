package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/agent/lane"
	"quartet/services/agent/runners"
	"quartet/services/agent/turns"
)

func TestA6_Outcomes(t *testing.T) {
	for name, c := range map[string]struct {
		outcome agentv1.TurnOutcome
		state   agentv1.TurnState
		reason  string
		message agentv1.MessageState
	}{
		"unspecified": {
			0, agentv1.TurnState_TURN_STATE_COMPLETED, "finished",
			agentv1.MessageState_MESSAGE_STATE_PROCESSED,
		},
		"completed": {
			done, agentv1.TurnState_TURN_STATE_COMPLETED, "finished",
			agentv1.MessageState_MESSAGE_STATE_PROCESSED,
		},
		"retryable": {
			retryable, agentv1.TurnState_TURN_STATE_FAILED, "retryable",
			agentv1.MessageState_MESSAGE_STATE_QUEUED,
		},
		"released": {
			released, agentv1.TurnState_TURN_STATE_FAILED, "released",
			agentv1.MessageState_MESSAGE_STATE_QUEUED,
		},
		"fatal": {
			fatal, agentv1.TurnState_TURN_STATE_FAILED, "fatal",
			agentv1.MessageState_MESSAGE_STATE_QUARANTINED,
		},
		"baseline over budget": {
			agentv1.TurnOutcome_TURN_OUTCOME_BASELINE_OVER_BUDGET,
			agentv1.TurnState_TURN_STATE_FAILED, "baseline_over_budget",
			agentv1.MessageState_MESSAGE_STATE_QUARANTINED,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, a := turn(t)
			ended := r.finish(a, c.outcome)
			require.Equal(t, c.state, ended.GetState())
			require.Equal(t, c.reason, pbjson.EnumText(ended.GetEndReason()))
			require.NotNil(t, ended.GetEndedAt())
			m := r.message("keeper", a.GetMessage().GetMessageId())
			require.Equal(t, c.message, m.GetState())
			if c.outcome == released {
				require.Zero(t, m.GetAttempts(), "the message had no part in it")
			} else {
				require.EqualValues(t, 1, m.GetAttempts())
			}
			require.Empty(t, r.facts("keeper").GetAgent().GetCurrentRunId())
			require.Equal(t, a.GetTurn().GetTurnId(), r.facts("keeper").GetAgent().GetLastTurnId())

			// Once more, and with another outcome: nothing changes.
			before := len(r.events())
			require.Equal(t, c.reason, pbjson.EnumText(r.finish(a, c.outcome).GetEndReason()))
			require.Equal(t, c.reason, pbjson.EnumText(r.finish(a, fatal).GetEndReason()))
			require.Len(t, r.events(), before)
			must.Refuse(r.trySubmit(a, 0, "late"))(t, fault.TurnEnded)
		})
	}
	r, a := turn(t)
	must.Refuse(r.tryFinish(a, 99))(t, fault.InvalidArgument)
}

// A runner that cannot go on gives its message back as often as it likes: the
// message is never put aside for that, keeps its place, and is taken up once
// for the operator. The attempts that count still do.
func TestA6_AReleasedTurnCountsNoAttempt(t *testing.T) {
	r, a := turn(t)
	second := r.send("keeper", "second", normal)
	first := a.GetMessage().GetMessageId()
	for range 2 * lane.MaxAttempts {
		said := r.send("keeper", "by the way", interject)
		r.submit(a, 0, "thinking")
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_INTERJECTED, r.message("keeper", said).GetState())
		r.finish(a, released)
		r.restart()
		a = r.take("keeper")
		require.Equal(t, said, a.GetMessage().GetMessageId(), "what was interjected is heard again, first")
		r.finish(a, done)
		a = r.take("keeper")
		require.Equal(t, first, a.GetMessage().GetMessageId())
		require.Zero(t, a.GetMessage().GetAttempts(), "as it stood before this turn")
	}
	acks := 0
	for _, b := range r.briefs(&agentv1.ListBriefsRequest{Kind: agentv1.BriefKind_BRIEF_KIND_ACK}) {
		if strings.Contains(b.GetText(), "by the way") {
			continue
		}
		acks++
	}
	require.Equal(t, 1, acks)
	for range lane.MaxAttempts {
		r.finish(a, retryable)
		a = r.take("keeper")
	}
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUARANTINED, r.message("keeper", first).GetState())
	require.Equal(t, second, a.GetMessage().GetMessageId())
}

// What a turn did before it failed is no reason to put its message aside: such an attempt is not
// counted, also after a restart and after the loss of a runner. Attempts without progress are.
func TestA5_ProgressCountsNoAttempt(t *testing.T) {
	r, a := turn(t)
	id := a.GetMessage().GetMessageId()
	for i := range 2 * lane.MaxAttempts {
		require.EqualValues(t, i, a.GetMessage().GetProgressedAttempts())
		r.submit(a, 0, "", use("CreateWorkItem", "objective", "x"))
		r.restart() // progress is durable
		if i%2 == 0 {
			r.finish(a, retryable)
		} else {
			r.clk.Advance(runners.Term)
			r.eventually(func() bool { return r.facts("keeper").GetAgent().GetCurrentRunId() == "" })
		}
		a = r.take("keeper")
		require.Equal(t, id, a.GetMessage().GetMessageId())
	}
	require.EqualValues(t, 1, r.message("keeper", id).GetAttempts(), "the one that is open")

	// No progress: reading, a call that failed, a call that changed nothing, a round without calls.
	r.on("CompleteWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		return nil, fault.NotFound.New("no")
	})
	r.on("UpdateWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.UpdateWorkItemResponse{Unchanged: true}, nil
	})
	for i := range lane.MaxAttempts {
		require.EqualValues(t, i+1, r.message("keeper", id).GetAttempts())
		r.submit(a, 0, "", use("ListWorkItems"), use("CompleteWorkItem", "work_item_id", "wi_1"),
			use("UpdateWorkItem", "work_item_id", "wi_1", "objective", "x"))
		r.submit(a, 1, "thinking")
		r.finish(a, retryable)
		if i < lane.MaxAttempts-1 {
			a = r.take("keeper")
		}
	}
	m := r.message("keeper", id)
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUARANTINED, m.GetState())
	require.EqualValues(t, lane.MaxAttempts, m.GetAttempts())
	require.EqualValues(t, 2*lane.MaxAttempts, m.GetProgressedAttempts())
}

// A message whose turns fail after each first step is put aside as well: after 30 such turns they count.
func TestA5_ProgressIsBounded(t *testing.T) {
	r, a := turn(t)
	id := a.GetMessage().GetMessageId()
	for i := range lane.MaxProgressed + lane.MaxAttempts {
		m := r.message("keeper", id)
		require.EqualValues(t, min(i, lane.MaxProgressed), m.GetProgressedAttempts())
		require.EqualValues(t, max(1, i-lane.MaxProgressed+1), m.GetAttempts())
		r.submit(a, 0, "", use("CreateWorkItem", "objective", "x"))
		r.finish(a, retryable)
		if i < lane.MaxProgressed+lane.MaxAttempts-1 {
			require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, r.message("keeper", id).GetState())
			a = r.take("keeper")
		}
	}
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUARANTINED, r.message("keeper", id).GetState())
}

func TestA6_RunsAreFenced(t *testing.T) {
	r, a := turn(t)
	forged := &agentv1.AcquireTurnResponse{Turn: &agentv1.Turn{
		AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: "run_00000000000000000000000zzz",
	}}
	must.Refuse(r.tryFinish(forged, done))(t, fault.RunStale)
	must.Refuse(r.trySubmit(forged, 0, "x"))(t, fault.RunStale)
	renew := func(a *agentv1.AcquireTurnResponse) error {
		_, err := r.tryRenew(a)
		return err
	}
	require.ErrorIs(t, renew(forged), fault.RunStale)
	require.NoError(t, renew(a))

	// A credential of another run, another agent.
	for _, actor := range []rpc.Actor{
		{
			Namespace: "acme", Principal: "p", Role: rpc.RoleAgent, AgentID: "keeper",
			RunID: "run_00000000000000000000000zzz",
		},
		{Namespace: "acme", Principal: "p", Role: rpc.RoleAgent, AgentID: "other"},
	} {
		require.Error(t, must.Err(r.service.FinishTurn(rpc.WithActor(t.Context(), actor), &agentv1.FinishTurnRequest{
			AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(),
		})), "%+v", actor)
	}
	must.Refuse(r.tryFinish(&agentv1.AcquireTurnResponse{
		Turn: &agentv1.Turn{AgentId: "keeper", TurnId: "trn_00000000000000000000000zzz", RunId: a.GetTurn().
			GetRunId()},
	}, done))(t, fault.NotFound)
	r.finish(a, done)
}

// A message that failed three times is quarantined, and the next one gets its turn
// (SPEC A5).
func TestA5_PoisonNeverStopsTheLane(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	poison, next := r.send("keeper", "poison", normal), r.send("keeper", "next", normal)
	for i := range lane.MaxAttempts {
		a := r.take("keeper")
		require.Equal(t, poison, a.GetMessage().GetMessageId())
		require.EqualValues(t, i+1, r.message("keeper", poison).GetAttempts())
		r.restart() // attempts are durable
		r.finish(a, retryable)
	}
	m := r.message("keeper", poison)
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUARANTINED, m.GetState())
	require.Contains(t, m.GetStateReason(), "attempt 3 of 3")
	require.Equal(t, next, r.take("keeper").GetMessage().GetMessageId())
}

func TestX12_ALostRunnerGivesItsMessageBack(t *testing.T) {
	r, a := turn(t)
	r.clk.Advance(runners.Term - time.Millisecond)
	require.Equal(t, a.GetTurn().GetRunId(), r.facts("keeper").GetAgent().GetCurrentRunId())

	// A sign of life begins the term anew, and writes no line.
	before := len(r.events())
	resp := must.Value(r.tryRenew(a))(t)
	require.Equal(t, r.clk.Now().Add(runners.Term), resp.GetLeaseExpiresAt().AsTime())
	require.Len(t, r.events(), before)
	r.clk.Advance(runners.Term - time.Millisecond)
	require.Equal(t, a.GetTurn().GetRunId(), r.facts("keeper").GetAgent().GetCurrentRunId())

	r.clk.Advance(time.Millisecond)
	r.eventually(func() bool { return r.facts("keeper").GetAgent().GetCurrentRunId() == "" })
	m := r.message("keeper", a.GetMessage().GetMessageId())
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, m.GetState())
	require.Equal(t, "lease_lost", m.GetStateReason())
	require.EqualValues(t, 1, m.GetAttempts())

	// The late runner is told so, whatever it does, and leaves no trace (SPEC X7).
	before = len(r.events())
	must.Refuse(r.trySubmit(a, 0, "late", use("CreateWorkItem", "objective", "late")))(t, fault.RunStale)
	must.Refuse(r.tryFinish(a, done))(t, fault.RunStale)
	must.Refuse(r.tryRenew(a))(t, fault.RunStale)
	require.Empty(t, r.others.seen())
	require.Len(t, r.events(), before)

	// A second loss and a third, then quarantine.
	for range lane.MaxAttempts - 1 {
		r.take("keeper")
		r.clk.Advance(runners.Term)
		r.eventually(func() bool { return r.facts("keeper").GetAgent().GetCurrentRunId() == "" })
	}
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUARANTINED, r.message("keeper", a.GetMessage().GetMessageId()).
		GetState())
}

// After a restart every open turn has one full term (SPEC X12), and its runner goes on.
func TestX14_ARestartGivesOneFullTerm(t *testing.T) {
	r, a := turn(t)
	r.clk.Advance(runners.Term - time.Second)
	r.restart()
	r.clk.Advance(runners.Term - time.Second)
	r.submit(a, 0, "here I am") // a full term from now
	r.clk.Advance(runners.Term - time.Second)
	r.restart()
	r.clk.Advance(runners.Term)
	r.eventually(func() bool { return r.facts("keeper").GetAgent().GetCurrentRunId() == "" })
}

// A lost turn that cannot be ended holds back no other, and is tried again soon.
func TestD5_OneAgentsErrorsDelayNoOther(t *testing.T) {
	r := newRig(t)
	for _, agentID := range []string{"alpha", "beta"} {
		r.spawn(agentID)
		r.send(agentID, "go", normal)
	}
	a := r.take("alpha")
	r.take("beta")
	hang, proceed := make(chan struct{}), make(chan struct{})
	r.completeThenHang(hang, proceed)
	must.Refuse(r.trySubmit(a, 0, "done", use("CompleteWorkItem", "work_item_id", "wi_1")))(t, fault.NotReady)
	r.clk.Advance(runners.Term)
	<-hang // alpha's end waits for the work plane
	r.eventually(func() bool { return r.facts("beta").GetAgent().GetCurrentRunId() == "" })
	require.NotEmpty(t, r.facts("alpha").GetAgent().GetCurrentRunId())
	close(proceed)
	r.eventually(func() bool {
		r.clk.Advance(turns.RetryTerm)
		return r.facts("alpha").GetAgent().GetCurrentRunId() == ""
	})
}

// Turns that change nothing are counted, input starts the count anew (SPEC D4).
func TestD4_IdleTurnsAreCounted(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	idle := func() int32 { return r.facts("keeper").GetAgent().GetIdleTurns() }
	tick := func() *agentv1.AcquireTurnResponse {
		must.Value(r.service.OfferDecision(r.scheduler(), &agentv1.OfferDecisionRequest{
			AgentId: "keeper", FactsRevision: r.facts("keeper").GetFactsRevision(),
			Decision: &agentv1.Decision{
				Action:     agentv1.DecisionAction_DECISION_ACTION_TICK,
				TickReason: agentv1.TickReason_TICK_REASON_WAKE_HINT, Reason: "agent_triggered",
			},
		}))(t)
		return r.take("keeper")
	}
	for i := range 3 {
		a := tick()
		r.submit(a, 0, strings.Repeat("talk ", i))
		r.finish(a, done)
		require.EqualValues(t, i+1, idle())
	}
	r.finish(tick(), fatal)
	require.EqualValues(t, 4, idle(), "a tick that was put aside changed nothing and must not be repeated without end")
	a := tick()
	r.submit(a, 0, "", use("ListWorkItems"))
	r.finish(a, done)
	require.EqualValues(t, 5, idle(), "a read is no progress")
	r.on("UpdateWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.UpdateWorkItemResponse{}, nil
	})
	a = tick()
	r.submit(a, 0, "", use("UpdateWorkItem", "work_item_id", "wi_1", "objective", "other"))
	r.finish(a, done)
	require.Zero(t, idle(), "a change is progress")
	r.finish(tick(), done)
	require.EqualValues(t, 1, idle())
	r.send("keeper", "news", normal)
	require.Zero(t, idle(), "input is news")
}

func TestA6_EventsOfATurnAreInOrder(t *testing.T) {
	r, a := turn(t)
	r.submit(a, 0, "x", use("ListWorkItems"))
	r.finish(a, done)
	require.Equal(t, []string{
		"agent_spawned", "message_queued", "message_dequeued", "turn_started", "brief_written", "round_submitted",
		"tool_result_recorded",
		"round_settled", "message_processed", "turn_completed", "brief_written",
	}, planetest.Types(r.events()))
	for _, ev := range r.events() {
		require.Equal(t, "acme", ev.Namespace)
		require.Equal(t, "keeper", ev.AgentID)
		require.NotEmpty(t, ev.Principal)
	}
}

// A band is first in, first out, also when a run fails that had several of its
// messages: the one it was about came first (SPEC A5).
func TestA5_AFailedRunGivesItsMessagesBackInOrder(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	for _, text := range []string{"first", "second", "third"} {
		r.send("keeper", text, interject)
	}
	a := r.take("keeper")
	require.Equal(t, "first", a.GetMessage().GetText())
	require.Len(t, a.GetInterjections(), 2)
	r.finish(a, retryable)
	again := r.take("keeper")
	require.Equal(t, "first", again.GetMessage().GetText())
	require.Equal(t, "second", again.GetInterjections()[0].GetText())
	require.Equal(t, "third", again.GetInterjections()[1].GetText())
}
