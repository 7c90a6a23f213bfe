package work

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/work/derive"
)

const (
	open      = workv1.WorkItemState_WORK_ITEM_STATE_OPEN
	completed = workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED
	needs     = workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT
)

func waitOf(kind waitingv1.WaitKind) *workv1.AttachedWait {
	return &workv1.AttachedWait{WaitId: "w", Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: kind}
}

func intentOf(triggers, consumed int64) *workv1.AttachedWait {
	return &workv1.AttachedWait{
		WaitId: "i", Mode: waitingv1.WaitMode_WAIT_MODE_INTENT, Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL,
		TriggerCount: triggers, ConsumedCount: consumed,
	}
}

func TestW8_Readiness(t *testing.T) {
	task, operator := waitOf(waitingv1.WaitKind_WAIT_KIND_TASK), waitOf(waitingv1.WaitKind_WAIT_KIND_OPERATOR)
	timer, external, system := waitOf(waitingv1.WaitKind_WAIT_KIND_TIMER),
		waitOf(waitingv1.WaitKind_WAIT_KIND_EXTERNAL), waitOf(waitingv1.WaitKind_WAIT_KIND_SYSTEM)
	triggered := waitOf(waitingv1.WaitKind_WAIT_KIND_EXTERNAL)
	triggered.TriggerCount = 2
	for name, c := range map[string]struct {
		item   *workv1.WorkItemRecord
		state  string
		ready  string
		reason string
		class  string
	}{
		"nothing in the way": {
			&workv1.WorkItemRecord{State: open}, "RUNNABLE", "runnable",
			"runnable", "QUEUED_RUNNABLE",
		},
		"a draft is runnable": {
			&workv1.WorkItemRecord{State: open, PlanStatus: workv1.PlanStatus_PLAN_STATUS_DRAFT}, "RUNNABLE",
			"runnable", "runnable", "QUEUED_RUNNABLE",
		},
		"completed beats all": {
			&workv1.WorkItemRecord{State: completed, BlockedBy: "x", PlanStatus: needs, Waits: []*workv1.AttachedWait{
				task,
			}}, "COMPLETED", "completed", "completed", "COMPLETED_RECENT",
		},
		"a blocker": {
			&workv1.WorkItemRecord{State: open, BlockedBy: "x"}, "BLOCKED",
			"blocked", "manual_blocker", "BLOCKED",
		},
		"a blocker beats needs_input": {
			&workv1.WorkItemRecord{State: open, BlockedBy: "x", PlanStatus: needs}, "BLOCKED", "blocked",
			"manual_blocker", "BLOCKED",
		},
		"needs_input": {
			&workv1.WorkItemRecord{State: open, PlanStatus: needs},
			"WAITING_OPERATOR", "waiting_for_operator", "plan_needs_input", "WAITING_FOR_OPERATOR",
		},
		"a wait beats the blocker": {
			&workv1.WorkItemRecord{State: open, BlockedBy: "x", Waits: []*workv1.AttachedWait{operator}},
			"WAITING_OPERATOR", "waiting_for_operator", "active_operator_wait", "WAITING_FOR_OPERATOR",
		},
		"a task wait": {
			&workv1.WorkItemRecord{State: open, Waits: []*workv1.AttachedWait{task}}, "WAITING_TASK", "blocked",
			"active_task_wait", "BLOCKED",
		},
		"a timer wait": {
			&workv1.WorkItemRecord{State: open, Waits: []*workv1.AttachedWait{timer}}, "WAITING_TIMER", "blocked",
			"active_timer_wait", "BLOCKED",
		},
		"an external wait": {
			&workv1.WorkItemRecord{State: open, Waits: []*workv1.AttachedWait{external}}, "WAITING_EXTERNAL", "blocked",
			"active_external_wait", "BLOCKED",
		},
		"a system wait": {
			&workv1.WorkItemRecord{State: open, Waits: []*workv1.AttachedWait{system}}, "WAITING_SYSTEM", "blocked",
			"active_system_wait", "BLOCKED",
		},
		"a triggered wait still waits": {
			&workv1.WorkItemRecord{State: open, Waits: []*workv1.AttachedWait{triggered}}, "WAITING_EXTERNAL",
			"blocked", "active_external_wait", "TRIGGERED_BLOCKED",
		},
		"task > operator > timer > external": {
			&workv1.WorkItemRecord{State: open, Waits: []*workv1.AttachedWait{system, external, timer, operator, task}},
			"WAITING_TASK", "blocked", "active_task_wait", "BLOCKED",
		},
		"operator > timer > external": {
			&workv1.WorkItemRecord{State: open, Waits: []*workv1.AttachedWait{system, external, timer, operator}},
			"WAITING_OPERATOR", "waiting_for_operator", "active_operator_wait", "WAITING_FOR_OPERATOR",
		},
		"timer > external > system": {
			&workv1.WorkItemRecord{State: open, Waits: []*workv1.AttachedWait{system, external, timer}},
			"WAITING_TIMER", "blocked", "active_timer_wait", "BLOCKED",
		},
		"external > system": {
			&workv1.WorkItemRecord{State: open, Waits: []*workv1.AttachedWait{system, external}}, "WAITING_EXTERNAL",
			"blocked", "active_external_wait", "BLOCKED",
		},
		"an intent stops nothing": {
			&workv1.WorkItemRecord{State: open, Waits: []*workv1.AttachedWait{intentOf(0, 0)}}, "RUNNABLE", "runnable",
			"runnable", "QUEUED_RUNNABLE",
		},
		"nor does a triggered one": {
			&workv1.WorkItemRecord{State: open, Waits: []*workv1.AttachedWait{intentOf(3, 1)}}, "RUNNABLE", "runnable",
			"runnable", "QUEUED_RUNNABLE",
		},
		"a triggered intent shows a blocked item": {
			&workv1.WorkItemRecord{State: open, BlockedBy: "x", Waits: []*workv1.AttachedWait{intentOf(3, 1)}},
			"BLOCKED", "blocked", "manual_blocker", "TRIGGERED_BLOCKED",
		},
		"a consumed one does not": {
			&workv1.WorkItemRecord{State: open, BlockedBy: "x", Waits: []*workv1.AttachedWait{intentOf(3, 3)}},
			"BLOCKED", "blocked", "manual_blocker", "BLOCKED",
		},
		"nor one of a completed item": {
			&workv1.WorkItemRecord{State: completed, Waits: []*workv1.AttachedWait{intentOf(3, 0)}}, "COMPLETED",
			"completed", "completed", "COMPLETED_RECENT",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := derive.ReadinessOf(c.item)
			require.Equal(t, "SCHEDULING_STATE_"+c.state, r.State.String())
			require.Equal(t, c.ready, r.Name())
			require.Equal(t, c.reason, r.Reason)
			require.Equal(t, "CANDIDATE_CLASS_"+c.class, derive.ClassOf(c.item).String())

			// Every surface shows what the function says (SPEC X6).
			v := derive.View(c.item, "")
			require.Equal(t, r.State, v.GetSchedulingState())
			require.Equal(t, r.Ready, v.GetReadiness())
			require.Equal(t, r.Reason, v.GetReasonCode())
			require.Equal(t, derive.ClassOf(c.item), v.GetCandidateClass())
		})
	}
}

func TestW9_FocusMakesARunnableItemCurrentRunnable(t *testing.T) {
	it := &workv1.WorkItemRecord{WorkItemId: "wi_1", State: open}
	require.Equal(t, workv1.CandidateClass_CANDIDATE_CLASS_CURRENT_RUNNABLE, derive.View(it, "wi_1").
		GetCandidateClass())
	require.True(t, derive.View(it, "wi_1").GetIsCurrent())
	require.False(t, derive.View(it, "wi_2").GetIsCurrent())
	require.False(t, derive.View(&workv1.WorkItemRecord{State: open}, "").GetIsCurrent(), "no id is no focus")

	blocked := &workv1.WorkItemRecord{WorkItemId: "wi_1", State: open, BlockedBy: "x"}
	require.Equal(t, workv1.CandidateClass_CANDIDATE_CLASS_BLOCKED, derive.View(blocked, "wi_1").GetCandidateClass())
	require.Nil(t, derive.View(nil, ""))
}

func TestW9_CurrentTodo(t *testing.T) {
	todo := func(text string, s workv1.TodoState) *workv1.TodoItem {
		return &workv1.TodoItem{Text: text, State: s}
	}
	pending, doing, done := workv1.TodoState_TODO_STATE_PENDING, workv1.TodoState_TODO_STATE_IN_PROGRESS,
		workv1.TodoState_TODO_STATE_COMPLETED
	for _, c := range []struct {
		todos []*workv1.TodoItem
		want  string
	}{
		{nil, ""},
		{[]*workv1.TodoItem{todo("a", done)}, ""},
		{[]*workv1.TodoItem{todo("a", done), todo("b", pending), todo("c", pending)}, "b"},
		{[]*workv1.TodoItem{todo("a", pending), todo("b", doing)}, "b"},
		{[]*workv1.TodoItem{todo("a", doing), todo("b", doing)}, "a"},
	} {
		require.Equal(t, c.want, derive.CurrentTodo(c.todos).GetText())
	}
}

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
