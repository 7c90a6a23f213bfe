package sim

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// derivations check what is derived from records and stored nowhere (SPEC X6). The rules are those of SPEC W8 and W9,
// written here once more and apart from the services. It is part of the books.
type derivations struct {
	newest map[string]*workv1.WorkItem // by item: its highest revision that was shown, as it was shown
}

// derived is what follows from the fields of one item.
type derived struct {
	state     workv1.SchedulingState
	readiness workv1.Readiness
	reason    string
	class     workv1.CandidateClass
	triggered bool
}

// derive applies the rules to an item: completed, then a wait, the blocker, needs_input, and else runnable.
func derive(it *workv1.WorkItem) (d derived) {
	const blocked, asking = workv1.Readiness_READINESS_BLOCKED, workv1.Readiness_READINESS_WAITING_FOR_OPERATOR
	var wait waitingv1.WaitKind
	for _, w := range it.GetWaits() {
		d.triggered = d.triggered || w.GetTriggerCount() > w.GetConsumedCount()
		if w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT { // there is one at most (SPEC P1)
			wait = w.GetKind()
		}
	}
	switch {
	case it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED:
		d.state, d.readiness, d.reason = workv1.SchedulingState_SCHEDULING_STATE_COMPLETED,
			workv1.Readiness_READINESS_COMPLETED, "completed"
	case wait == waitingv1.WaitKind_WAIT_KIND_TASK:
		d.state, d.readiness, d.reason = workv1.SchedulingState_SCHEDULING_STATE_WAITING_TASK, blocked,
			"active_task_wait"
	case wait == waitingv1.WaitKind_WAIT_KIND_OPERATOR:
		d.state, d.readiness, d.reason = workv1.SchedulingState_SCHEDULING_STATE_WAITING_OPERATOR, asking,
			"active_operator_wait"
	case wait == waitingv1.WaitKind_WAIT_KIND_TIMER:
		d.state, d.readiness, d.reason = workv1.SchedulingState_SCHEDULING_STATE_WAITING_TIMER, blocked,
			"active_timer_wait"
	case wait == waitingv1.WaitKind_WAIT_KIND_EXTERNAL:
		d.state, d.readiness, d.reason = workv1.SchedulingState_SCHEDULING_STATE_WAITING_EXTERNAL, blocked,
			"active_external_wait"
	case it.GetBlockedBy() != "":
		d.state, d.readiness, d.reason = workv1.SchedulingState_SCHEDULING_STATE_BLOCKED, blocked, "manual_blocker"
	case it.GetPlanStatus() == workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT:
		d.state, d.readiness, d.reason = workv1.SchedulingState_SCHEDULING_STATE_WAITING_OPERATOR, asking,
			"plan_needs_input"
	default:
		d.state, d.readiness, d.reason = workv1.SchedulingState_SCHEDULING_STATE_RUNNABLE,
			workv1.Readiness_READINESS_RUNNABLE, "runnable"
	}
	switch {
	case d.readiness == workv1.Readiness_READINESS_COMPLETED:
		d.class = workv1.CandidateClass_CANDIDATE_CLASS_COMPLETED_RECENT
	case d.readiness == workv1.Readiness_READINESS_RUNNABLE && it.GetIsCurrent():
		d.class = workv1.CandidateClass_CANDIDATE_CLASS_CURRENT_RUNNABLE
	case d.readiness == workv1.Readiness_READINESS_RUNNABLE:
		d.class = workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE
	case d.triggered:
		d.class = workv1.CandidateClass_CANDIDATE_CLASS_TRIGGERED_BLOCKED
	case d.readiness == asking:
		d.class = workv1.CandidateClass_CANDIDATE_CLASS_WAITING_FOR_OPERATOR
	default:
		d.class = workv1.CandidateClass_CANDIDATE_CLASS_BLOCKED
	}
	return d
}

// answer checks the items that an answer shows.
func (ds *derivations) answer(reply any) error {
	switch r := reply.(type) {
	case *workv1.GetWorkQueueResponse:
		return ds.queue(r)
	case interface{ GetWorkItem() *workv1.WorkItem }:
		return ds.item(r.GetWorkItem())
	case interface{ GetWorkItems() []*workv1.WorkItem }:
		return ds.items(r.GetWorkItems())
	}
	return nil
}

func (ds *derivations) items(all []*workv1.WorkItem) error {
	for _, it := range all {
		if err := ds.item(it); err != nil {
			return err
		}
	}
	return nil
}

// item checks that an item shows what follows from its fields, and that it is shown as the same revision was before.
func (ds *derivations) item(it *workv1.WorkItem) error {
	if it == nil {
		return nil
	}
	want := derive(it)
	got := derived{
		it.GetSchedulingState(), it.GetReadiness(), it.GetReasonCode(), it.GetCandidateClass(),
		it.GetHasTriggeredWaits(),
	}
	if got != want || it.GetHasActiveWaits() != (len(it.GetWaits()) > 0) {
		return fmt.Errorf("item %s is shown with %v, and %v follows from %v", it.GetWorkItemId(), got, want, it)
	}
	id, alike := it.GetWorkItemId(), proto.CloneOf(it)
	// a pick changes these without a revision, and lists leave the rest out
	alike.Resumed, alike.IsCurrent, alike.CandidateClass = nil, false, 0
	alike.PlanArtifact, alike.TodoList = nil, nil
	switch before := ds.newest[id]; {
	case before == nil || alike.GetRevision() > before.GetRevision():
		ds.newest[id] = alike
	case alike.GetRevision() == before.GetRevision() && !proto.Equal(alike, before):
		return fmt.Errorf("revision %d of item %s is shown as %v, and was shown as %v", it.GetRevision(), id, alike,
			before)
	}
	return nil
}

// byAge, byTrigger, byUpdate and byReminder are the orders of SPEC W9.1. Items of equal rank may be in any order.
func byAge(x, y *workv1.WorkItem) int {
	if x.GetResumed() != nil && y.GetResumed() != nil {
		return compareTimes(x.GetResumed().GetAt(), y.GetResumed().GetAt())
	}
	if x.GetResumed() != nil || y.GetResumed() != nil { // those that were resumed come first
		return cmp.Compare(btoi(y.GetResumed() != nil), btoi(x.GetResumed() != nil))
	}
	return cmp.Or(compareTimes(x.GetUpdatedAt(), y.GetUpdatedAt()), compareTimes(x.GetCreatedAt(), y.GetCreatedAt()))
}

func byTrigger(x, y *workv1.WorkItem) int {
	return cmp.Or(compareTimes(lastTriggered(y), lastTriggered(x)), byUpdate(x, y))
}

func byUpdate(x, y *workv1.WorkItem) int { return compareTimes(y.GetUpdatedAt(), x.GetUpdatedAt()) }

func byReminder(x, y *workv1.WorkItem) int { return compareTimes(x.GetRecheckAt(), y.GetRecheckAt()) }

func lastTriggered(it *workv1.WorkItem) (last *timestamppb.Timestamp) {
	for _, w := range it.GetWaits() {
		if w.GetTriggerCount() > w.GetConsumedCount() && compareTimes(w.GetLastTriggeredAt(), last) > 0 {
			last = w.GetLastTriggeredAt()
		}
	}
	return last
}

func compareTimes(x, y *timestamppb.Timestamp) int { return x.AsTime().Compare(y.AsTime()) }

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// ranking is a list of a queue: the class of its items, their order, and how many it shows at most.
type ranking struct {
	class workv1.CandidateClass
	shown []*workv1.WorkItem
	total int32 // items of the class that are not in focus
	most  int
	by    func(x, y *workv1.WorkItem) int
}

func rankings(q *workv1.GetWorkQueueResponse) []ranking {
	n := q.GetCounts()
	return []ranking{
		{
			workv1.CandidateClass_CANDIDATE_CLASS_TRIGGERED_BLOCKED, q.GetTriggeredBlocked(), n.GetTriggeredBlocked(),
			3, byTrigger,
		},
		{
			workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE, q.GetQueuedRunnable(), n.GetQueuedRunnable(), 5,
			byAge,
		},
		{
			workv1.CandidateClass_CANDIDATE_CLASS_WAITING_FOR_OPERATOR, q.GetWaitingForOperator(),
			n.GetWaitingForOperator(), 3, byUpdate,
		},
		{workv1.CandidateClass_CANDIDATE_CLASS_BLOCKED, q.GetBlocked(), n.GetBlocked(), 3, byUpdate},
		{workv1.CandidateClass_CANDIDATE_CLASS_COMPLETED_RECENT, q.GetCompletedRecent(), n.GetCompleted(), 3, byUpdate},
	}
}

// queue checks the lists of a queue: each item is in the list of its class, in its place, and the focus is in none.
func (ds *derivations) queue(q *workv1.GetWorkQueueResponse) error {
	for _, k := range rankings(q) {
		passed := 0 // items of this class that the caller did not want
		if k.class == workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE {
			passed = len(q.GetPassedOver())
		}
		least := min(int(k.total), k.most)
		if len(k.shown) > least || len(k.shown)+passed < least || !slices.IsSortedFunc(k.shown, k.by) {
			return fmt.Errorf("of %d items, %s shows %v", k.total, k.class, k.shown)
		}
		for _, it := range k.shown {
			if it.GetCandidateClass() != k.class || it.GetIsCurrent() {
				return fmt.Errorf("%s shows %v", k.class, it)
			}
		}
		if err := ds.items(k.shown); err != nil {
			return err
		}
	}
	if it := q.GetCurrent(); it != nil && !it.GetIsCurrent() || !slices.IsSortedFunc(q.GetRechecks(), byReminder) {
		return fmt.Errorf("the focus is %v, the reminders are %v", it, q.GetRechecks())
	}
	return ds.items(slices.Concat([]*workv1.WorkItem{q.GetCurrent(), q.GetNamed()}, q.GetRechecks(), q.GetPassedOver()))
}
