package work

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// An item whose wait was resolved is first in its class, with the wait and what resolved it,
// until the agent turns to it; one whose wait was cancelled is not (SPEC W9.3).
func TestW9_AResumedItemIsFirstUntilItIsTurnedTo(t *testing.T) {
	for name, turnTo := range map[string]func(r *rig, itemID string){
		"picked": func(r *rig, itemID string) { r.pick(itemID) },
		"written": func(r *rig, itemID string) {
			r.update(&workv1.UpdateWorkItemRequest{
				AgentId: "keeper", WorkItemId: itemID, PlanStatus: workv1.PlanStatus_PLAN_STATUS_READY,
			})
		},
		"completed": func(r *rig, itemID string) { r.complete(itemID) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			first, second := r.create("first").GetWorkItemId(), r.create("second").GetWorkItemId()
			wait := func(id string, status waitingv1.WaitStatus, revision int64) *waitingv1.Wait {
				return &waitingv1.Wait{
					WaitId: id, AgentId: "keeper", WorkItemId: second, Mode: waitingv1.WaitMode_WAIT_MODE_WAIT,
					Kind:   waitingv1.WaitKind_WAIT_KIND_OPERATOR,
					Reason: "which one?", Status: status, Revision: revision,
				}
			}
			const active, resolved, cancelled = waitingv1.WaitStatus_WAIT_STATUS_ACTIVE,
				waitingv1.WaitStatus_WAIT_STATUS_RESOLVED, waitingv1.WaitStatus_WAIT_STATUS_CANCELLED
			r.hear(&journal.Event{
				Type: "wait_registered", Namespace: "acme", AgentID: "keeper",
				Payload: &waitingv1.WaitRegistered{Wait: wait("wt_0", active, 1)},
			})
			r.hear(&journal.Event{
				Type: "wait_cancelled", Namespace: "acme", AgentID: "keeper",
				Payload: &waitingv1.WaitCancelled{Wait: wait("wt_0", cancelled, 2)},
			})
			require.Nil(t, r.get(second).GetResumed(), "a wait that was given up lets nothing go on")

			r.hear(&journal.Event{
				Type: "wait_registered", Namespace: "acme", AgentID: "keeper",
				Payload: &waitingv1.WaitRegistered{Wait: wait("wt_1", active, 1)},
			})
			require.Equal(t, "which one?", r.get(second).GetBlockedBy())
			r.hear(&journal.Event{
				Type: "wait_resolved", Namespace: "acme", AgentID: "keeper",
				Payload: &waitingv1.WaitResolved{
					Wait: wait("wt_1", resolved, 2), Cause: waitingv1.WaitCause_WAIT_CAUSE_OPERATOR_INPUT,
					CauseId: "msg_1",
				},
			})
			order := func() (ids []string) {
				for _, it := range r.queue().GetQueuedRunnable() {
					ids = append(ids, it.GetWorkItemId())
				}
				return ids
			}
			require.Equal(t, []string{second, first}, order())
			resumed := r.get(second).GetResumed()
			require.Equal(t, "which one?", resumed.GetWait().GetReason())
			require.Equal(t, "msg_1", resumed.GetCauseId())
			r.restart()
			require.Equal(t, []string{second, first}, order())
			turnTo(r, second)
			require.Nil(t, r.get(second).GetResumed())
			r.restart()
			require.Nil(t, r.get(second).GetResumed(), "replay gives the same")
		})
	}
}

// GetWorkQueue returns the first of the items that it is asked about that is an open one of the
// agent, and passes over those that it is told to unless they were written since.
func TestW9_NamedAndPassedOver(t *testing.T) {
	r := newRig(t)
	done, open := r.create("done").GetWorkItemId(), r.create("open").GetWorkItemId()
	r.complete(done)
	ask := func(req *workv1.GetWorkQueueRequest) *workv1.GetWorkQueueResponse {
		req.AgentId = "keeper"
		q, err := r.client.GetWorkQueue(r.ctx, req)
		require.NoError(t, err)
		return q
	}
	require.Equal(t, open, ask(&workv1.GetWorkQueueRequest{WorkItemIds: []string{"", "wi_nobodys", done, open}}).
		GetNamed().GetWorkItemId())
	require.Nil(t, ask(&workv1.GetWorkQueueRequest{WorkItemIds: []string{done}}).GetNamed())
	written := r.get(open).GetUpdatedAt()
	q := ask(&workv1.GetWorkQueueRequest{
		PassedOver: []*workv1.PassedOver{{WorkItemId: open, UnlessWrittenAfter: written}},
	})
	require.Empty(t, q.GetQueuedRunnable())
	require.Equal(t, open, q.GetPassedOver()[0].GetWorkItemId())
	require.EqualValues(t, 1, q.GetCounts().GetQueuedRunnable())
	r.clk.Advance(1e9)
	r.update(&workv1.UpdateWorkItemRequest{
		AgentId: "keeper", WorkItemId: open, PlanStatus: workv1.PlanStatus_PLAN_STATUS_READY,
	})
	q = ask(&workv1.GetWorkQueueRequest{
		PassedOver: []*workv1.PassedOver{{WorkItemId: open, UnlessWrittenAfter: written}},
	})
	require.Len(t, q.GetQueuedRunnable(), 1)
	// A revision says more than a time, which may have been set.
	revision := r.get(open).GetRevision()
	for after, shown := range map[int64]int{revision: 0, revision - 1: 1} {
		q = ask(&workv1.GetWorkQueueRequest{
			PassedOver: []*workv1.PassedOver{
				{WorkItemId: open, UnlessWrittenAfter: written, UnlessRevisionAfter: after},
			},
		})
		require.Len(t, q.GetQueuedRunnable(), shown)
	}
	for _, n := range []int{100, 101} {
		_, err := r.client.GetWorkQueue(r.ctx, &workv1.GetWorkQueueRequest{
			AgentId: "keeper", WorkItemIds: make([]string, n),
		})
		require.Equal(t, n > 100, err != nil, n)
		_, err = r.client.GetWorkQueue(r.ctx, &workv1.GetWorkQueueRequest{
			AgentId: "keeper", PassedOver: make([]*workv1.PassedOver, n),
		})
		require.Equal(t, n > 100, err != nil, n)
	}
}
