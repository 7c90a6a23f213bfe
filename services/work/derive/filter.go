package derive

import (
	"slices"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// Matches reports whether a filter includes an item. current is the agent's focus.
func Matches(it *workv1.WorkItemRecord, current string, f workv1.WorkItemFilter) bool {
	r := ReadinessOf(it).Ready
	switch f {
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_OPEN:
		return r != workv1.Readiness_READINESS_COMPLETED
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_COMPLETED:
		return r == workv1.Readiness_READINESS_COMPLETED
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_CURRENT:
		return it.GetWorkItemId() == current
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_QUEUED:
		return r != workv1.Readiness_READINESS_COMPLETED && it.GetWorkItemId() != current &&
			it.GetBlockedBy() == "" && !Waiting(it)
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_BLOCKED:
		return r == workv1.Readiness_READINESS_BLOCKED
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_WAITING_FOR_OPERATOR:
		return r == workv1.Readiness_READINESS_WAITING_FOR_OPERATOR
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_RUNNABLE:
		return r == workv1.Readiness_READINESS_RUNNABLE
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_UNSPECIFIED, workv1.WorkItemFilter_WORK_ITEM_FILTER_ALL:
		return true
	}
	return false
}

// Waiting reports whether an item has a wait of mode wait. An intent is none.
func Waiting(it *workv1.WorkItemRecord) bool {
	for _, w := range it.GetWaits() {
		if w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT {
			return true
		}
	}
	return false
}

// PassedOver reports whether passed has an entry of an item, and the item was not written after the revision
// that the entry gives, or, if it gives none, the time.
func PassedOver(passed []*workv1.PassedOver, it *workv1.WorkItemRecord) bool {
	return slices.ContainsFunc(passed, func(p *workv1.PassedOver) bool {
		if p.GetWorkItemId() == it.GetWorkItemId() && p.GetUnlessRevisionAfter() > 0 {
			return it.GetRevision() <= p.GetUnlessRevisionAfter()
		}
		return p.GetWorkItemId() == it.GetWorkItemId() && !Before(p.GetUnlessWrittenAfter(), it.GetUpdatedAt())
	})
}
