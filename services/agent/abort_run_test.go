package agent

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
)

func (r *rig) abort(runID, requestID string) (*agentv1.AbortRunResponse, error) {
	return r.service.AbortRun(r.operator(), &agentv1.AbortRunRequest{
		AgentId: "keeper", RunId: runID, RequestId: requestID, Reason: "wrong branch",
	})
}

// A7: the turn ends as aborted, its message is not offered again, the agent is
// paused; nothing else changes.
func TestA7_AnAbortEndsTheTurnAndPauses(t *testing.T) {
	r, a := turn(t)
	next := r.send("keeper", "two", normal)
	before := len(r.events())
	resp := must.Value(r.abort(a.GetTurn().GetRunId(), "req"))(t)
	require.Equal(t, agentv1.TurnState_TURN_STATE_ABORTED, resp.GetTurn().GetState())
	require.Equal(t, agentv1.TurnEndReason_TURN_END_REASON_OPERATOR_ABORTED, resp.GetTurn().GetEndReason())
	require.Equal(t, paused, resp.GetAgent().GetControl())
	require.Equal(t, "operator_aborted: wrong branch", resp.GetAgent().GetControlReason())
	require.Empty(t, resp.GetAgent().GetCurrentRunId())
	require.Equal(t, []string{"message_aborted", "turn_aborted", "agent_paused"}, planetest.Types(r.events()[before:]))
	m := r.message("keeper", a.GetMessage().GetMessageId())
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_ABORTED, m.GetState())
	require.Equal(t, "operator_aborted: wrong branch", m.GetStateReason())
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, r.message("keeper", next).GetState())

	// Again: by request id, by the guard of the run that was aborted, and after a restart.
	written := len(r.events())
	for _, requestID := range []string{"req", ""} {
		again := must.Value(r.abort(a.GetTurn().GetRunId(), requestID))(t)
		require.Equal(t, a.GetTurn().GetTurnId(), again.GetTurn().GetTurnId())
	}
	r.restart()
	again := must.Value(r.abort(a.GetTurn().GetRunId(), ""))(t)
	require.Equal(t, a.GetTurn().GetTurnId(), again.GetTurn().GetTurnId())
	require.Len(t, r.events(), written)
	require.True(t, r.poll("keeper").GetPending())

	r.must("resume", "keeper")
	require.Equal(t, "two", r.take("keeper").GetMessage().GetText(), "the aborted message does not come again")
}

// A7: whatever the runner sends afterwards is refused and leaves no trace.
func TestA7_WhatComesAfterAnAbortLeavesNoTrace(t *testing.T) {
	r, a := turn(t)
	r.submit(a, 0, "first", use("ListWorkItems"))
	must.Value(r.abort("", ""))(t)
	before, called := len(r.events()), len(r.others.seen())
	for _, late := range []func() error{
		func() error { _, err := r.trySubmit(a, 1, "late", use("CreateWorkItem", "objective", "x")); return err },
		func() error { _, err := r.tryFinish(a, done); return err },
		func() error { _, err := r.tryFinish(a, retryable); return err },
		func() error {
			_, err := r.tryRenew(a)
			return err
		},
	} {
		require.ErrorIs(t, late(), fault.RunStale)
	}
	require.Len(t, r.events(), before)
	require.Len(t, r.others.seen(), called, "no call was made")
	// The round that was answered before is answered again: it is no news.
	require.True(t, r.submit(a, 0, "first", use("ListWorkItems")).GetTurnEnded())
	require.Len(t, r.events(), before)
}

// A7: an abort during a call. The call has landed, its result and all after it
// have not.
func TestA7_AnAbortDuringACall(t *testing.T) {
	r, a := turn(t)
	r.on("CreateWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		_, err := r.abort(a.GetTurn().GetRunId(), "")
		return &workv1.CreateWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: "wi_1"}}, err
	})
	must.Refuse(r.trySubmit(a, 0, "x", use("CreateWorkItem", "objective", "one"),
		use("CreateWorkItem", "objective", "two")))(t, fault.RunStale)
	require.Equal(t, []string{"CreateWorkItem"}, r.others.methods())
	require.NotContains(t, planetest.Types(r.events()), "tool_result_recorded")
	require.NotContains(t, planetest.Types(r.events()), "round_settled")
}

// A7: a stale guard changes nothing.
func TestA7_AStaleGuard(t *testing.T) {
	r, a := turn(t)
	r.finish(a, done)
	r.send("keeper", "two", normal)
	b := r.take("keeper")
	before := len(r.events())
	for _, guard := range []string{a.GetTurn().GetRunId(), "run_00000000000000000000000zzz"} {
		_, err := r.abort(guard, "")
		require.ErrorIs(t, err, fault.RunStale)
		require.Equal(t, b.GetTurn().GetRunId(), fault.From(err).Metadata()["current_run_id"])
	}
	must.Refuse(r.abort("nonsense", ""))(t, fault.InvalidArgument)
	require.Len(t, r.events(), before)
	require.Equal(t, running, r.facts("keeper").GetAgent().GetControl())
	r.submit(b, 0, "unharmed")
	r.finish(b, done)
	must.Refuse(r.abort(b.GetTurn().GetRunId(), ""))(t, fault.RunStale, "it ended by itself")
}

// A7: with no turn open the agent is paused all the same: the turn may have
// ended a moment ago.
func TestA7_AnAbortWithoutATurn(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	resp := must.Value(r.abort("", ""))(t)
	require.Nil(t, resp.GetTurn())
	require.Equal(t, paused, resp.GetAgent().GetControl())
	before := len(r.events())
	must.Value(r.abort("", ""))(t)
	r.must("stop", "keeper")
	resp = must.Value(r.abort("", ""))(t)
	require.Equal(t, stopped, resp.GetAgent().GetControl(), "an abort starts nobody")
	require.Len(t, r.events(), before+1)
}

// A9: what an operator interjects is never lost: whether an aborted run heard it
// or not, it is for the next one.
func TestA9_AnInterjectionOutlivesAnAbort(t *testing.T) {
	r, a := turn(t)
	heard := r.send("keeper", "heard", interject)
	require.Len(t, r.submit(a, 0, "x").GetInterjections(), 1)
	undelivered := r.send("keeper", "undelivered", interject)
	must.Value(r.abort("", ""))(t)
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, r.message("keeper", heard).GetState())
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, r.message("keeper", undelivered).GetState())
	r.restart()
	r.must("resume", "keeper")
	a = r.take("keeper")
	require.Equal(t, "heard", a.GetMessage().GetText())
	require.Equal(t, "undelivered", a.GetInterjections()[0].GetText())
}
