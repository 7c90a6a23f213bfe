package children

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// childStatus reads an agent. Record is nil if the agent does not exist.
func (s *Service) childStatus(ctx context.Context, k plane.Key) (state.ChildStatus, error) {
	c, _, err := journal.View(ctx, s.engine.For(k.Namespace, k.ID), func(st *state.State) (state.ChildStatus, error) {
		a := st.Lookup(k)
		if a == nil {
			return state.ChildStatus{}, nil
		}
		return a.ChildStatus(), nil
	})
	return c, err
}

// waitCancelled reports whether the wait with which a child's last turn ended will not wake
// the child any more: it was cancelled, or it ended so long ago that the waiting plane has
// dropped it. For a wait that was resolved recently it returns false, since the message that wakes the child may not
// be queued yet.
func (s *Service) waitCancelled(ctx context.Context, k plane.Key, waitID string) (bool, error) {
	conn, err := s.deps.Conn("waiting")
	if err != nil {
		return false, err
	}
	r, err := waitingv1.NewWaitingServiceClient(conn).
		GetWait(ctx, &waitingv1.GetWaitRequest{AgentId: k.ID, WaitId: waitID})
	if err != nil && fault.From(err).Code() == codes.NotFound {
		return true, nil // it ended so long ago that it is no longer in memory
	}
	return r.GetWait().GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_CANCELLED, err
}

// completion is what the other planes report about a child that has nothing to do.
type completion struct {
	done   bool
	retry  bool // a plane has not consumed an event that matters here; check again
	result string
}

// completionOf reports whether a child has completed its work: it has no open item, no
// wait and no running task (SPEC A12). Intents and timers do not count: they stop nothing
// (SPEC W8), and a forgotten one would hold back the parent's result permanently. That the
// child's last turn has ended does not suffice. The facts come from four planes, of which one
// may lag behind another; where that would change the outcome, retry is set.
func (s *Service) completionOf(ctx context.Context, k plane.Key, c state.ChildStatus) (completion, error) {
	q, err := s.deps.Work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: k.ID, OmitPlans: true})
	if err != nil || q.GetCounts().GetOpen() > 0 {
		return completion{}, err
	}
	if q.GetCounts().GetCompleted() > 0 && c.FirstItem == "" {
		return completion{retry: true}, nil // this plane has not consumed work_item_created yet
	}
	standing, err := access.AllWaits(ctx, s.deps.Waiting, &waitingv1.ListWaitsRequest{AgentId: k.ID})
	if err != nil {
		return completion{}, err
	}
	for _, w := range standing.GetWaits() {
		if w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT &&
			w.GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE {
			return completion{}, nil
		}
	}
	if c.LastWait != "" {
		if over, err := s.waitCancelled(ctx, k, c.LastWait); err != nil || !over {
			return completion{}, err
		}
	}
	v, err := s.tasksCompleted(ctx, k, c.LastTurn)
	if err != nil || !v.done {
		return v, err
	}
	v.result, err = s.resultOf(ctx, k, c, q)
	return v, err
}

// tasksCompleted returns done if no task of an agent runs and the agent has the result of every
// task that ended since its last turn began. If only a result is missing it returns retry: the
// message with it is not queued yet.
func (s *Service) tasksCompleted(ctx context.Context, k plane.Key, last *agentv1.Turn) (completion, error) {
	tasks, err := s.tasks()
	if err != nil {
		return completion{}, err
	}
	r, err := tasks.ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: k.ID, IncludeTerminal: true, PageSize: 500})
	if err != nil || r.GetTotalActive() > 0 {
		return completion{}, err
	}
	var since []string
	for _, t := range r.GetTasks() {
		if !t.GetEndedAt().AsTime().Before(last.GetStartedAt().AsTime()) {
			since = append(since, t.GetTaskId())
		}
	}
	received, _, err := journal.View(ctx, s.engine.For(k.Namespace, k.ID), func(st *state.State) (bool, error) {
		a := st.Lookup(k)
		for _, taskID := range since {
			if a != nil && a.Lane.Get(a.MessageIDFor(taskID)) == nil && !slices.Contains(a.AnsweredTasks, taskID) {
				return false, nil
			}
		}
		return true, nil
	})
	return completion{done: received, retry: !received}, err
}

// resultOf returns a child's result: the report of its first item, else the report of the item
// that was completed last and has one, else the child's last text (SPEC A12).
func (s *Service) resultOf(ctx context.Context, k plane.Key, c state.ChildStatus, q *workv1.GetWorkQueueResponse) (
	string, error,
) {
	if c.FirstItem != "" {
		it, err := s.projections.Subject(ctx, &agentv1.Message{AgentId: k.ID, WorkItemId: c.FirstItem})
		if err != nil {
			return "", err
		}
		if it.GetResultSummary() != "" {
			return state.ClipReport(it.GetResultSummary()), nil
		}
	}
	for _, it := range q.GetCompletedRecent() {
		if it.GetResultSummary() != "" {
			return state.ClipReport(it.GetResultSummary()), nil
		}
	}
	return state.ClipReport(c.LastText), nil
}

// tasks returns a client of the task plane.
func (s *Service) tasks() (taskv1.TaskServiceClient, error) {
	conn, err := s.deps.Conn("task")
	if err != nil {
		return nil, err
	}
	return taskv1.NewTaskServiceClient(conn), nil
}

// reconcileDeletion makes an agent that is being deleted a deleted one when nothing of it is left in
// any plane; until then again is true. The other planes react to the deletion's event on their own.
// What their reactions leave, such as items beyond one frame, reconcileDeletion ends itself.
func (s *Service) reconcileDeletion(ctx context.Context, k plane.Key, c state.ChildStatus) (again bool, err error) {
	for _, left := range []func(context.Context, plane.Key, state.ChildStatus) (bool, error){
		s.messagesRemain, s.childrenRemain, s.tasksRemain, s.waitsRemain, s.itemsRemain,
	} {
		if some, err := left(ctx, k, c); some || err != nil {
			return true, err
		}
	}
	return false, s.commit(ctx, k, "EndDeletion", func(a *state.Agent, env journal.Env) []*journal.Event {
		if a.Record.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_DELETING {
			return nil
		}
		return a.FinishDeletion(env)
	})
}

// messagesRemain drops the messages that are queued still, which are those beyond one command. It reports false: no
// message is left.
func (s *Service) messagesRemain(ctx context.Context, k plane.Key, _ state.ChildStatus) (bool, error) {
	for more := true; more; {
		err := s.commit(ctx, k, "DropMessages", func(a *state.Agent, env journal.Env) []*journal.Event {
			events := a.DropQueued(env)
			more = len(events) > 0
			return events
		})
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// childrenRemain reports whether private children of the agent remain. It enqueues each of them, so
// that they end before their parent.
func (s *Service) childrenRemain(ctx context.Context, k plane.Key, c state.ChildStatus) (some bool, err error) {
	for _, d := range c.Children {
		ck := plane.Key{Namespace: k.Namespace, ID: d.GetChildAgentId()}
		child, err := s.childStatus(ctx, ck)
		if err != nil {
			return false, err
		}
		if state.IsOpen(d) || child.Record != nil &&
			child.Record.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_DELETED {
			some = true
			s.supervisor.Expect(k.Namespace, d)
		}
	}
	return some, nil
}

// tasksRemain reports whether the agent has running tasks or, for a private child, whether the task by
// which its parent follows it has not ended: a child is deleted only after its result was delivered.
func (s *Service) tasksRemain(ctx context.Context, k plane.Key, c state.ChildStatus) (bool, error) {
	tasks, err := s.tasks()
	if err != nil {
		return false, err
	}
	r, err := tasks.ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: k.ID, PageSize: 1})
	if err != nil || r.GetTotalActive() > 0 || c.Record.GetSupervisorAgentId() == "" {
		return r.GetTotalActive() > 0, err
	}
	d, _, err := s.delegationOf(ctx, plane.Key{Namespace: k.Namespace, ID: c.Record.GetSupervisorAgentId()},
		c.Record.GetDelegationId())
	if err != nil || d == nil {
		return false, err
	}
	t, err := tasks.GetTask(ctx, &taskv1.GetTaskRequest{
		AgentId: d.Record.GetParentAgentId(),
		TaskId:  d.Record.GetTaskId(),
	})
	if err != nil && fault.From(err).Code() == codes.NotFound {
		return true, nil // the task plane has not consumed the delegation yet
	}
	return err == nil && !t.GetTask().GetTerminal(), err
}

// waitsRemain reports whether the agent has waits, triggers or timers that have not ended. The waiting
// plane goes on by itself until all have.
func (s *Service) waitsRemain(ctx context.Context, k plane.Key, _ state.ChildStatus) (bool, error) {
	conn, err := s.deps.Conn("waiting")
	if err != nil {
		return false, err
	}
	waiting := waitingv1.NewWaitingServiceClient(conn)
	waits, err := s.deps.Waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: k.ID, PageSize: 1})
	if err != nil || len(waits.GetWaits()) > 0 {
		return len(waits.GetWaits()) > 0, err
	}
	triggers, err := waiting.ListExternalTriggers(ctx, &waitingv1.ListExternalTriggersRequest{
		AgentId: k.ID, PageSize: 1,
	})
	if err != nil || len(triggers.GetTriggers()) > 0 {
		return len(triggers.GetTriggers()) > 0, err
	}
	timers, err := waiting.ListTimers(ctx, &waitingv1.ListTimersRequest{AgentId: k.ID, PageSize: 1})
	return len(timers.GetTimers()) > 0, err
}

// ownerDeleted is the blocker of the work items that a deleted agent leaves.
const ownerDeleted = "owner_deleted"

// itemsRemain sets the blocker ownerDeleted on open items that do not have it, and reports whether
// there were any. The work plane itself has blocked as many items as fit one frame; these are the
// others.
func (s *Service) itemsRemain(ctx context.Context, k plane.Key, _ state.ChildStatus) (some bool, err error) {
	conn, err := s.deps.Conn("work")
	if err != nil {
		return false, err
	}
	work := workv1.NewWorkServiceClient(conn)
	for token := ""; ; {
		r, err := work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{
			AgentId: k.ID, Filter: workv1.WorkItemFilter_WORK_ITEM_FILTER_OPEN, PageSize: 100, PageToken: token,
		})
		if err != nil {
			return false, err
		}
		for _, it := range r.GetWorkItems() {
			if it.GetBlockedBy() == ownerDeleted {
				continue
			}
			some = true
			if err := blockItem(ctx, work, it); err != nil {
				return false, err
			}
		}
		if token = r.GetNextPageToken(); token == "" {
			return some, nil
		}
	}
}

func blockItem(ctx context.Context, work interface {
	UpdateWorkItem(ctx context.Context, in *workv1.UpdateWorkItemRequest, opts ...grpc.CallOption) (
		*workv1.UpdateWorkItemResponse, error)
}, it *workv1.WorkItem,
) error {
	blocker := ownerDeleted
	_, err := work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
		AgentId:    it.GetAgentId(),
		WorkItemId: it.GetWorkItemId(), BlockedBy: &blocker,
	})
	if err != nil && fault.From(err).Reason() == fault.WorkItemCompleted {
		return nil // an operator completed it meanwhile
	}
	return err
}
