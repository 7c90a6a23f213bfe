package work

import (
	"context"
	"fmt"
	"strings"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/derive"
	"quartet/services/work/homes"
)

// unfinishedSample is how many unfinished todos a warning shows.
const unfinishedSample = 5

// RunningTask is a task of an item that has not ended. A blocking one prevents the item's
// completion.
type RunningTask struct {
	TaskID   string
	Blocking bool
}

// CompleteWorkItem completes an item (SPEC W6), unless a blocking task of it runs. A completed
// item is returned with already_completed. It takes no summary: the text of the round becomes
// the report, by PromoteReport.
func (s *Service) CompleteWorkItem(ctx context.Context, req *workv1.CompleteWorkItemRequest) (
	*workv1.CompleteWorkItemResponse, error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := admit(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	if err := fault.First(
		fault.RequestID(req.GetRequestId()),
		fault.ID("work_item_id", req.GetWorkItemId(), "wi_"),
	); err != nil {
		return nil, err
	}
	// A task that starts between this look and the decision was started by the
	// same agent in parallel; its result reaches the completed item as a message.
	running, err := s.deps.Tasks.RunningTasks(ctx, req.GetAgentId(), req.GetWorkItemId())
	if err != nil {
		return nil, err
	}
	resp, err := plane.Do(ctx, s.engine, plane.Command[*State, *workv1.CompleteWorkItemResponse]{
		Frees: true, Method: "CompleteWorkItem", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*workv1.CompleteWorkItemResponse], error) {
			return decideComplete(st, env, req, running)
		},
		Answer: answerComplete,
	})
	if err != nil {
		return nil, err
	}
	s.discardPlan(plane.KeyOf(actor.Namespace, req.GetAgentId()), req.GetWorkItemId())
	s.plans.Attach(actor.Namespace, resp.GetWorkItem(), homes.AsIs)
	return resp, nil
}

// discardPlan removes the plan file of a completed item if it is empty. It holds the lock of the file's writers.
func (s *Service) discardPlan(k plane.Key, itemID string) {
	defer s.files.Lock(fileKey{k, homes.PlanPath(itemID)})()
	s.plans.Discard(k.Namespace, k.ID, itemID)
}

// decideComplete is the rule of CompleteWorkItem. running are the tasks of the item that have
// not ended.
func decideComplete(s *State, env journal.Env, req *workv1.CompleteWorkItemRequest, running []RunningTask) (
	journal.Decision[*workv1.CompleteWorkItemResponse], error,
) {
	var none journal.Decision[*workv1.CompleteWorkItemResponse]
	old, err := s.mutable(env.Actor.Namespace, req.GetAgentId(), req.GetWorkItemId())
	if err != nil {
		return none, err
	}
	current := s.current(env.Actor.Namespace, req.GetAgentId())
	if old.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED {
		return journal.Decision[*workv1.CompleteWorkItemResponse]{Reply: &workv1.CompleteWorkItemResponse{
			WorkItem: derive.View(old, current), AlreadyCompleted: true,
		}}, nil
	}
	if err := atRevision(old, req.ExpectedRevision); err != nil {
		return none, err
	}
	if ids := taskIDs(running, true); len(ids) > 0 {
		return none, fault.BlockingExecution.Newf("work item %q still has blocking execution (%s); wait for it or "+
			"stop it first", old.GetWorkItemId(), strings.Join(ids, ", ")).
			With("work_item_id", old.GetWorkItemId()).With("task_ids", strings.Join(ids, ","))
	}

	it := next(old, env)
	it.State = workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED
	it.CompletedAt = it.GetUpdatedAt()
	it.BlockedBy, it.BlockedByWaitId, it.Resumed = "", "", nil
	it.RecheckAt, it.RecheckConsumedAt = nil, nil
	it.OwnRecheckAt, it.GivenRecheckAt, it.GivenRecheckConsumedAt = nil, nil, nil
	it.Waits = nil
	done := &workv1.WorkItemCompleted{
		WorkItem: it, WasCurrent: current == it.GetWorkItemId(),
		CurrentWorkItemId: current,
	}
	for _, w := range old.GetWaits() {
		done.EndedWaitIds = append(done.EndedWaitIds, w.GetWaitId())
	}
	done.Warnings = completionWarnings(done, old, taskIDs(running, false))
	if done.GetWasCurrent() {
		done.CurrentWorkItemId = ""
	}
	events := []*journal.Event{itemEvent(it, old, done)}
	if done.GetWasCurrent() {
		events = append(events, focusReleased(it, workv1.FocusReleaseReason_FOCUS_RELEASE_REASON_COMPLETED))
	}
	return journal.Decision[*workv1.CompleteWorkItemResponse]{Events: events}, nil
}

// completionWarnings returns the warnings of a completion, about unfinished todos and the
// given running tasks. It also sets the counts of unfinished todos in done.
func completionWarnings(done *workv1.WorkItemCompleted, old *workv1.WorkItemRecord,
	running []string,
) []*workv1.Warning {
	warnings := unfinishedTodos(old.GetTodoList())
	for _, w := range warnings {
		done.PendingTodoCount, done.InProgressTodoCount = w.GetPendingCount(), w.GetInProgressCount()
	}
	done.UnfinishedTodoCount = done.GetPendingTodoCount() + done.GetInProgressTodoCount()
	done.CompletedWithUnfinishedTodos = done.GetUnfinishedTodoCount() > 0
	if len(running) > 0 {
		warnings = append(warnings, &workv1.Warning{
			Kind: workv1.WarningKind_WARNING_KIND_ACTIVE_TASKS, TaskIds: running,
			Message: fmt.Sprintf("%d task(s) still run for the completed work item; their results will arrive as "+
				"messages.", len(running)),
		})
	}
	return warnings
}

// unfinishedTodos returns a warning if some todos of a completed item are not completed
// (SPEC W6, W7).
func unfinishedTodos(todos []*workv1.TodoItem) []*workv1.Warning {
	unfinished := &workv1.Warning{
		Kind:    workv1.WarningKind_WARNING_KIND_UNFINISHED_TODOS,
		Message: "Work item completed with unfinished todo items.",
	}
	for _, t := range todos {
		switch t.GetState() {
		case workv1.TodoState_TODO_STATE_PENDING:
			unfinished.PendingCount++
		case workv1.TodoState_TODO_STATE_IN_PROGRESS:
			unfinished.InProgressCount++
		case workv1.TodoState_TODO_STATE_UNSPECIFIED, workv1.TodoState_TODO_STATE_COMPLETED:
			continue
		}
		if len(unfinished.GetSample()) < unfinishedSample {
			unfinished.Sample = append(unfinished.Sample, t)
		}
	}
	if len(unfinished.GetSample()) == 0 {
		return nil
	}
	return []*workv1.Warning{unfinished}
}

// taskIDs returns the ids of the running tasks, or with blockingOnly of those that block
// completion.
func taskIDs(running []RunningTask, blockingOnly bool) []string {
	var ids []string
	for _, t := range running {
		if t.Blocking || !blockingOnly {
			ids = append(ids, t.TaskID)
		}
	}
	return ids
}

var answerComplete = journal.AnswerOf(func(p *workv1.WorkItemCompleted) *workv1.CompleteWorkItemResponse {
	return &workv1.CompleteWorkItemResponse{
		WorkItem: derive.View(p.GetWorkItem(), p.GetCurrentWorkItemId()),
		Warnings: p.GetWarnings(), WasCurrent: p.GetWasCurrent(),
	}
})
