package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/agent/control"
	"quartet/services/agent/lane"
	"quartet/services/agent/state"
)

const (
	running = agentv1.Control_CONTROL_RUNNING
	paused  = agentv1.Control_CONTROL_PAUSED
	stopped = agentv1.Control_CONTROL_STOPPED
)

// order returns one order by name.
func (r *rig) order(ctx context.Context, verb, agentID, requestID, reason string) (*agentv1.Agent, error) {
	switch verb {
	case "pause":
		resp, err := r.service.PauseAgent(ctx, &agentv1.PauseAgentRequest{
			AgentId: agentID, RequestId: requestID, Reason: reason,
		})
		return resp.GetAgent(), err
	case "resume":
		resp, err := r.service.ResumeAgent(ctx, &agentv1.ResumeAgentRequest{
			AgentId: agentID, RequestId: requestID, Reason: reason,
		})
		return resp.GetAgent(), err
	case "stop":
		resp, err := r.service.StopAgent(ctx, &agentv1.StopAgentRequest{
			AgentId: agentID, RequestId: requestID, Reason: reason,
		})
		return resp.GetAgent(), err
	case "start":
		resp, err := r.service.StartAgent(ctx, &agentv1.StartAgentRequest{
			AgentId: agentID, RequestId: requestID, Reason: reason,
		})
		return resp.GetAgent(), err
	case "abort":
		resp, err := r.service.AbortRun(ctx, &agentv1.AbortRunRequest{
			AgentId: agentID, RequestId: requestID, Reason: reason,
		})
		return resp.GetAgent(), err
	}
	panic(verb)
}

func (r *rig) must(verb, agentID string) *agentv1.Agent {
	r.t.Helper()
	return must.Value(r.order(r.operator(), verb, agentID, "", ""))(r.t)
}

// A8: from every control, every order; what changes nothing writes nothing.
func TestA8_OrdersAndWhereTheyLead(t *testing.T) {
	for _, c := range []struct {
		from, order string
		to          agentv1.Control
		event       string
		refused     fault.Reason
	}{
		{"", "pause", paused, "agent_paused", ""},
		{"", "resume", running, "", ""},
		{"", "stop", stopped, "agent_stopped", ""},
		{"", "start", running, "", ""},
		{"pause", "pause", paused, "", ""},
		{"pause", "resume", running, "agent_resumed", ""},
		{"pause", "stop", stopped, "agent_stopped", ""},
		{"pause", "start", running, "agent_started", ""},
		{"stop", "pause", stopped, "", ""},
		{"stop", "resume", stopped, "", fault.AgentStopped},
		{"stop", "stop", stopped, "", ""},
		{"stop", "start", running, "agent_started", ""},
	} {
		t.Run(c.from+" then "+c.order, func(t *testing.T) {
			r := newRig(t)
			r.spawn("keeper")
			if c.from != "" {
				r.must(c.from, "keeper")
			}
			before, rec := len(r.events()), r.facts("keeper").GetAgent()
			a, err := r.order(r.operator(), c.order, "keeper", "req", "because")
			if c.refused != "" {
				require.ErrorIs(t, err, c.refused)
			} else {
				require.NoError(t, err)
				require.Equal(t, c.to, a.GetControl())
			}
			now := r.facts("keeper").GetAgent()
			require.Equal(t, c.to, now.GetControl())
			if c.event == "" {
				require.Len(t, r.events(), before)
				require.Equal(t, rec.GetRevision(), now.GetRevision())
				return
			}
			require.Equal(t, c.event, r.events()[before].Type)
			require.Len(t, r.events(), before+1)
			require.Equal(t, rec.GetRevision()+1, now.GetRevision())
			require.Equal(t, "because", now.GetControlReason())
			require.Equal(t, rpc.ActorFrom(r.operator()).Principal, now.GetControlBy())
			require.Equal(t, epoch, now.GetControlAt().AsTime())

			// The same request again, also after the agent moved on and a restart.
			other := "start"
			if c.to == running {
				other = "stop"
			}
			r.must(other, "keeper")
			r.restart()
			again := must.Value(r.order(r.operator(), c.order, "keeper", "req", "because"))(t)
			require.Equal(t, c.to, again.GetControl(), "the first answer")
			require.NotEqual(t, c.to, r.facts("keeper").GetAgent().GetControl(), "nothing changed")
			must.Refuse(r.order(r.operator(), c.order, "keeper", "req", "another reason"))(t, fault.RequestIDReused)
		})
	}
}

// X15: an agent does not, not even to itself.
func TestX15_WhoGivesOrders(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	for _, verb := range []string{"pause", "resume", "stop", "start", "abort"} {
		before := len(r.events())
		_, err := r.order(planetest.AsAgent(t.Context(), "keeper"), verb, "keeper", "", "")
		require.ErrorIs(t, err, fault.PermissionDenied)
		must.Refuse(r.order(r.operator(), verb, "nobody", "", ""))(t, fault.NotFound)
		must.Refuse(r.order(r.operator(), verb, "Bad Name", "", ""))(t, fault.InvalidArgument)
		_, err = r.order(r.operator(), verb, "keeper", "", strings.Repeat("ä", control.MaxReasonChars+1))
		require.ErrorIs(t, err, fault.LimitExceeded)
		require.Len(t, r.events(), before, "a refusal writes nothing")
		must.Value(r.order(planetest.As(t.Context(), rpc.RoleAdmin), verb, "keeper", "",
			strings.Repeat("ä", control.MaxReasonChars)))(t)
	}
}

// A8: a paused agent takes everything and begins no turn.
// An order that changed nothing is over as well: its repetition does not undo what was ordered since, also after a
// restart (seed 3059 of the simulation).
func TestX2_AnOrderThatChangedNothingIsRemembered(t *testing.T) {
	r := newRig(t)
	for agent, c := range map[string]struct {
		order, back string
		to          agentv1.Control
	}{"a": {"pause", "resume", paused}, "b": {"stop", "start", stopped}} {
		r.spawn(agent)
		for _, request := range []string{"one", "two"} {
			require.Equal(t, c.to, must.Value(r.order(r.operator(), c.order, agent, request, ""))(t).GetControl())
		}
		require.Equal(t, running, r.must(c.back, agent).GetControl())
		r.restart()
		got := must.Value(r.order(r.operator(), c.order, agent, "two", ""))(t)
		require.Equal(t, c.to, got.GetControl(), "the first answer")
		now := must.Value(r.service.GetAgent(r.operator(), &agentv1.GetAgentRequest{AgentId: agent}))(t)
		require.Equal(t, running, now.GetAgent().GetControl())
	}
}

// An abort that changed nothing is remembered as well: its late repetition does not abort the turn of
// an agent that was resumed since.
func TestX2_AnAbortThatChangedNothingIsRemembered(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.must("pause", "keeper")
	must.Value(r.abort("", "late"))(t)
	r.must("resume", "keeper")
	r.send("keeper", "go", normal)
	a := r.take("keeper")
	got := must.Value(r.abort("", "late"))(t)
	require.Nil(t, got.GetTurn())
	require.Equal(t, running, r.record("keeper").GetControl())

	// So is that of a run that was aborted before.
	run := a.GetTurn().GetRunId()
	for _, request := range []string{"first", "second"} {
		got = must.Value(r.abort(run, request))(t)
		require.Equal(t, run, got.GetTurn().GetRunId())
	}
	r.must("resume", "keeper")
	r.send("keeper", "on", normal)
	r.finish(r.take("keeper"), done)
	got = must.Value(r.abort(run, "second"))(t, "the first answer")
	require.Equal(t, run, got.GetTurn().GetRunId())
}

func TestA8_APausedAgentBeginsNoTurn(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.send("keeper", "one", normal)
	a := r.take("keeper")
	r.must("pause", "keeper")
	r.submit(a, 0, "the open turn goes on")
	require.Equal(t, agentv1.TurnState_TURN_STATE_COMPLETED, r.finish(a, done).GetState())

	r.send("keeper", "two", normal)
	must.Value(r.service.EnqueueMessage(planetest.As(t.Context(), rpc.RoleIntegration), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", Text: "an event",
	}))(t)
	require.True(t, r.poll("keeper").GetPending())
	require.Equal(t, agentv1.Posture_POSTURE_PAUSED, r.posture("keeper"))
	r.restart()
	require.True(t, r.poll("keeper").GetPending(), "a pause survives a restart")
	r.must("resume", "keeper")
	require.Equal(t, "two", r.take("keeper").GetMessage().GetText())
}

func (r *rig) posture(agentID string) agentv1.Posture {
	r.t.Helper()
	resp := must.Value(r.service.GetAgent(r.operator(), &agentv1.GetAgentRequest{AgentId: agentID}))(r.t)
	return resp.GetAgent().GetPosture()
}

// SPEC A8: a stop is no failure. The message waits at the front of
// its lane with no attempt counted, however often that happens.
func TestA8_AStopGivesTheMessageBack(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	id := r.send("keeper", "one", normal)
	r.send("keeper", "two", normal)
	for range lane.MaxAttempts + 1 {
		a := r.take("keeper")
		in := r.send("keeper", "hurry", interject)
		require.Len(t, r.submit(a, 0, "working").GetInterjections(), 1)
		stoppedAgent := r.must("stop", "keeper")
		require.Empty(t, stoppedAgent.GetCurrentRunId())
		require.Equal(t, a.GetTurn().GetTurnId(), stoppedAgent.GetLastTurnId())
		ended := r.turn(a)
		require.Equal(t, agentv1.TurnState_TURN_STATE_INTERRUPTED, ended.GetState())
		require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_OPERATOR_STOPPED, ended.GetEndReason())
		m := r.message("keeper", id)
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, m.GetState())
		require.Zero(t, m.GetAttempts())
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, r.message("keeper", in).GetState(),
			"an interjection is not lost either")

		before := len(r.events())
		_, err := r.trySubmit(a, 1, "late", use("UpdateWorkItem", "work_item_id", "wi_1", "objective", "x"))
		require.ErrorIs(t, err, fault.RunStale)
		must.Refuse(r.tryFinish(a, done))(t, fault.RunStale)
		must.Refuse(r.tryRenew(a))(t, fault.RunStale)
		require.Len(t, r.events(), before)
		require.NotContains(t, r.others.methods(), "UpdateWorkItem")

		require.True(t, r.poll("keeper").GetPending())
		r.must("start", "keeper")
		// The interjection is first now: it found no running turn.
		first := r.take("keeper")
		require.Equal(t, "hurry", first.GetMessage().GetText())
		r.finish(first, done)
	}
	require.Equal(t, "one", r.take("keeper").GetMessage().GetText())
}

func (r *rig) turn(a *agentv1.AcquireTurnResponse) *agentv1.Turn {
	r.t.Helper()
	return must.Value(r.service.GetTurn(r.operator(), &agentv1.GetTurnRequest{
		AgentId: a.GetTurn().GetAgentId(),
		TurnId:  a.GetTurn().GetTurnId(),
	}))(r.t).GetTurn()
}

// A8: a stopped agent takes operators' words and the results of tasks.
func TestA8_WhatAStoppedAgentTakes(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.must("stop", "keeper")
	operatorID := r.send("keeper", "for later", normal)
	must.Refuse(r.service.EnqueueMessage(planetest.As(t.Context(), rpc.RoleIntegration), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", Text: "an event",
	}))(t, fault.AgentStopped)
	r.hear(said(&taskv1.TaskCompleted{Task: &taskv1.Task{TaskId: "tsk_1"}}))
	require.EqualValues(t, 2, r.facts("keeper").GetQueued())
	require.True(t, r.poll("keeper").GetPending())
	r.restart()
	require.True(t, r.poll("keeper").GetPending())
	r.must("start", "keeper")
	a := r.take("keeper")
	require.Equal(t, operatorID, a.GetMessage().GetMessageId())
	r.finish(a, done)
	require.Equal(t, "tsk_1", r.take("keeper").GetMessage().GetTaskId())
}

// wakeTick returns a scheduler's tick for what woke the agent.
func (r *rig) wakeTick() string {
	r.t.Helper()
	resp := r.offer(r.facts("keeper").GetFactsRevision(),
		&agentv1.Decision{
			Action:     agentv1.DecisionAction_DECISION_ACTION_TICK,
			TickReason: agentv1.TickReason_TICK_REASON_WAKE_HINT, Reason: "agent_triggered",
		})
	require.Equal(r.t, agentv1.OfferResult_OFFER_RESULT_RECORDED, resp.GetResult())
	return resp.GetMessageId()
}

// A8: no ticks for a stopped agent; the tick that stands is dropped and its
// cause is not forgotten.
func TestA8_AStopDropsTheTick(t *testing.T) {
	for _, inTurn := range []bool{false, true} {
		r := newRig(t)
		r.spawn("keeper")
		r.hear(said(&waitingv1.WaitResolved{
			Wait:  &waitingv1.Wait{WaitId: "wt_1"},
			Cause: waitingv1.WaitCause_WAIT_CAUSE_TIMER,
		}))
		tick := r.wakeTick()
		if inTurn {
			r.take("keeper")
		}
		r.must("stop", "keeper")
		m := r.message("keeper", tick)
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_DROPPED, m.GetState())
		f := r.facts("keeper")
		require.False(t, f.GetTickPending())
		require.True(t, f.GetWakeHint(), "what woke the agent was not told")
		offered := r.offer(f.GetFactsRevision(), &agentv1.Decision{
			Action:     agentv1.DecisionAction_DECISION_ACTION_TICK,
			TickReason: agentv1.TickReason_TICK_REASON_WAKE_HINT,
		})
		require.Equal(t, agentv1.OfferResult_OFFER_RESULT_STALE, offered.GetResult())
		r.must("start", "keeper")
		r.wakeTick()
		require.Equal(t, agentv1.MessageKind_MESSAGE_KIND_SYSTEM_TICK, r.take("keeper").GetMessage().GetKind())
	}
}

// A reminder is given once, and counts as given when its tick is queued: a stop keeps that tick, also of an open turn.
func TestA8_AStopKeepsTheTickOfAReminder(t *testing.T) {
	for _, inTurn := range []bool{false, true} {
		r := newRig(t)
		r.spawn("keeper")
		r.others.set(func() {
			r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
				return &workv1.GetWorkQueueResponse{
					Named: &workv1.WorkItem{WorkItemId: "wi_1", RecheckAt: timestamppb.New(time.Unix(0, 0))},
				}, nil
			}
		})
		tick := r.offer(r.facts("keeper").GetFactsRevision(), &agentv1.Decision{
			Action: agentv1.DecisionAction_DECISION_ACTION_TICK, TickReason: agentv1.TickReason_TICK_REASON_RECHECK,
			Reason: "recheck_due", WorkItemId: "wi_1", WorkItemRevision: 1,
		}).GetMessageId()
		require.NotEmpty(t, tick)
		if inTurn {
			require.Equal(t, tick, r.take("keeper").GetMessage().GetMessageId())
		}
		r.must("stop", "keeper")
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, r.message("keeper", tick).GetState())
		require.True(t, r.poll("keeper").GetPending())
		r.restart()
		require.True(t, r.facts("keeper").GetTickPending())
		r.must("start", "keeper")
		a := r.take("keeper")
		require.Equal(t, tick, a.GetMessage().GetMessageId())
		r.finish(a, done)
	}
}

// A tick that a stop dropped may come again, also if another message was dropped after it.
func TestA8_ADroppedTickComesAgain(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{
				Current: &workv1.WorkItem{WorkItemId: "wi_1", Readiness: workv1.Readiness_READINESS_RUNNABLE},
			}, nil
		}
	})
	offer := func() agentv1.OfferResult {
		return r.offer(r.facts("keeper").GetFactsRevision(), tickOf("wi_1", 1)).GetResult()
	}
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, offer())
	r.must("stop", "keeper")
	completed := said(&taskv1.TaskCompleted{Task: &taskv1.Task{TaskId: "tsk_1"}})
	r.hear(completed)
	require.EqualValues(t, 1, r.facts("keeper").GetQueued())
	must.Value(plane.Do(t.Context(), r.service.engine, plane.Command[*state.State, struct{}]{
		Method: "drop", AgentID: "keeper", Actor: plane.System(completed.Namespace),
		Decide: func(st *state.State, env journal.Env) (journal.Decision[struct{}], error) {
			a, err := st.Find(completed.Namespace, "keeper")
			if err != nil {
				return journal.Decision[struct{}]{}, err
			}
			return journal.Decision[struct{}]{Events: a.RecordAnswer(env, "tsk_1")}, nil
		},
	}))(t)
	require.Zero(t, r.facts("keeper").GetQueued(), "a second message is dropped")
	r.must("start", "keeper")
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, offer())
}
