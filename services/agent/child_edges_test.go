package agent

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/agent/children"
	"quartet/services/agent/directory"
	"quartet/services/agent/state"
)

// stays has time pass and looks whether a child is still there.
func (r *rig) stays(child *agentv1.SpawnAgentResponse) {
	r.t.Helper()
	for range 5 {
		require.NoError(r.t, r.service.Quiesce(r.t.Context()))
		r.clk.Advance(children.MaxRetry)
	}
	require.True(r.t, state.IsOpen(r.delegation(child.GetDelegationId())))
}

// A12: a child's end is looked at when an operator completes what kept it alive;
// it takes no turn for that.
func TestA12_AnItemCompletedByAnOperatorEndsTheChild(t *testing.T) {
	r := family(t)
	writer := r.journals.NewWriter(t, "work", workv1.File_quartet_work_v1_work_event_proto)
	open := int32(1)
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{Counts: &workv1.WorkQueueCounts{Open: open}}, nil
		}
	})
	child := r.delegate(r.operator(), "", "work")
	a := r.take(child.GetAgentId())
	r.submit(a, 0, "so far")
	r.finish(a, done)
	r.stays(child)
	r.others.set(func() { open = 0 })
	r.stays(child) // nobody said so yet
	writer.Write(&journal.Event{
		Namespace: "acme", AgentID: child.GetAgentId(), WorkItemID: "wi_1",
		Payload: &workv1.WorkItemCompleted{WorkItem: &workv1.WorkItemRecord{WorkItemId: "wi_1"}},
	})
	d := r.over(child)
	require.Equal(t, agentv1.DelegationOutcome_DELEGATION_OUTCOME_COMPLETED, d.GetOutcome())
	require.Equal(t, "so far", d.GetResultSummary())
}

// A12: a child whose turn ended with a wait lives while the wait does, and while
// its answer may be on its way; when the wait is cancelled nobody wakes it, and
// it is done. So it is after a restart.
func TestA12_AChildThatWaited(t *testing.T) {
	for name, restart := range map[string]bool{"heard": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			r := family(t)
			writer := r.journals.NewWriter(t, "waiting", waitingv1.File_quartet_waiting_v1_waiting_event_proto)
			wait := &waitingv1.Wait{
				WaitId: "wt_1", Mode: waitingv1.WaitMode_WAIT_MODE_WAIT,
				Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE,
			}
			r.on("WaitFor", func(context.Context, proto.Message) (proto.Message, error) {
				return &waitingv1.WaitForResponse{Wait: wait}, nil
			})
			r.on("GetWait", func(context.Context, proto.Message) (proto.Message, error) {
				r.others.mu.Lock()
				defer r.others.mu.Unlock()
				return &waitingv1.GetWaitResponse{Wait: proto.CloneOf(wait)}, nil
			})
			child := r.delegate(r.operator(), "", "work")
			r.submit(r.take(child.GetAgentId()), 0, "I wait", use("WaitFor", "reason", "the build", "wake", "external"))
			r.others.set(func() { r.others.waits = []*waitingv1.Wait{wait} })
			r.stays(child)
			r.others.set(func() {
				r.others.waits = nil
				wait = proto.CloneOf(wait)
				wait.Status = waitingv1.WaitStatus_WAIT_STATUS_RESOLVED
			})
			r.restart()
			r.stays(child) // the wake is on its way
			r.others.set(func() { wait.Status = waitingv1.WaitStatus_WAIT_STATUS_CANCELLED })
			if restart {
				r.restart()
			} else {
				writer.Write(&journal.Event{
					Namespace: "acme", AgentID: child.GetAgentId(),
					Payload: &waitingv1.WaitCancelled{
						Wait: wait, Reason: waitingv1.WaitEndReason_WAIT_END_REASON_CANCELLED,
					},
				})
			}
			require.Equal(t, "I wait", r.over(child).GetResultSummary())
		})
	}
}

// A12: a stale tick that is dropped is no turn, and it was the last thing that
// the child had.
func TestA12_ADroppedTickEndsTheChild(t *testing.T) {
	r := family(t)
	open := int32(1)
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{Counts: &workv1.WorkQueueCounts{Open: open}}, nil
		}
	})
	child := r.delegate(r.operator(), "", "work")
	r.finish(r.take(child.GetAgentId()), done)
	must.Value(r.service.OfferDecision(r.scheduler(), &agentv1.OfferDecisionRequest{
		AgentId: child.GetAgentId(), FactsRevision: r.facts(child.GetAgentId()).GetFactsRevision(),
		Decision: tickOf("wi_1", 1),
	}))(t)
	r.others.set(func() { open = 0 })
	r.stays(child)
	require.Nil(t, r.poll(child.GetAgentId()).GetTurn(), "the tick is stale")
	require.Equal(t, agentv1.DelegationOutcome_DELEGATION_OUTCOME_COMPLETED, r.over(child).GetOutcome())
}

// A9, A7: what was handed to a run that was aborted goes to the next turn, in
// order and before younger words; the turn's own message does not.
func TestA9_WhatAnAbortedRunWasHandedIsHeardAgain(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	own := r.send("keeper", "work", normal)
	early := r.send("keeper", "at the beginning", interject)
	a := r.take("keeper")
	require.Equal(t, early, a.GetMessage().GetMessageId(), "it is the first in the lane")
	r.finish(a, done)
	a = r.take("keeper")
	require.Equal(t, own, a.GetMessage().GetMessageId())
	one, two := r.send("keeper", "one", interject), r.send("keeper", "two", interject)
	require.Len(t, r.submit(a, 0, "so").GetInterjections(), 2)
	must.Value(r.service.AbortRun(r.operator(), &agentv1.AbortRunRequest{AgentId: "keeper"}))(t)
	younger := r.send("keeper", "younger", interject)
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_ABORTED, r.message("keeper", own).GetState())
	r.restart()
	must.Value(r.order(r.operator(), "resume", "keeper", "", ""))(t)
	b := r.take("keeper")
	require.Equal(t, one, b.GetMessage().GetMessageId())
	require.Len(t, b.GetInterjections(), 2)
	require.Equal(t, []string{two, younger}, []string{
		b.GetInterjections()[0].GetMessageId(),
		b.GetInterjections()[1].GetMessageId(),
	})
	r.finish(b, done)
	require.Zero(t, r.facts("keeper").GetQueued())
}

// A4: an agent is read with what it waits for, of items and by itself, waits and
// interests, whoever may read it; long lists are cut and counted.
func TestA4_GetAgentShowsItsWaits(t *testing.T) {
	r := family(t)
	child := r.delegate(r.operator(), "", "work").GetAgentId()
	// Supervision looks for questions of the child; those below are none that it shall find.
	require.NoError(t, r.service.Quiesce(t.Context()))
	active := waitingv1.WaitStatus_WAIT_STATUS_ACTIVE
	waits := []*waitingv1.Wait{
		{
			WaitId: "wt_1", WorkItemId: "wi_1", Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Status: active,
			Reason: "the build",
		},
		{WaitId: "wt_2", Mode: waitingv1.WaitMode_WAIT_MODE_INTENT, Status: active},
		{
			WaitId: "wt_3", Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: waitingv1.WaitKind_WAIT_KIND_OPERATOR,
			Status: active, Reason: "a word",
		},
	}
	r.others.set(func() { r.others.waits = waits })
	for _, id := range []string{"keeper", child} {
		for _, ctx := range []context.Context{r.operator(), planetest.AsAgent(t.Context(), "keeper")} {
			got := must.Value(r.service.GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: id}))(t)
			require.EqualValues(t, len(waits), got.GetTotalWaits())
			for i, w := range got.GetWaits() {
				require.True(t, proto.Equal(waits[i], w))
			}
			if id == "keeper" {
				require.Equal(t, agentv1.Posture_POSTURE_WAITING_OPERATOR, got.GetAgent().GetPosture())
				require.Contains(t, got.GetAgent().GetPostureReason(), "a word")
				require.Len(t, got.GetChildren(), 1)
			}
		}
	}
	for _, n := range []int{directory.ShownWaits - 1, directory.ShownWaits, directory.ShownWaits + 1} {
		r.others.set(func() { r.others.waits = make([]*waitingv1.Wait, n) })
		got := must.Value(r.service.GetAgent(r.operator(), &agentv1.GetAgentRequest{AgentId: "keeper"}))(t)
		require.Len(t, got.GetWaits(), min(n, directory.ShownWaits))
		require.EqualValues(t, n, got.GetTotalWaits())
	}
}
