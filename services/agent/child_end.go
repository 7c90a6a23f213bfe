package agent

import (
	"cmp"
	"context"
	"quartet/services/agent/ref"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// childState is what the supervision needs to know of an agent.
type childState struct {
	rec         *agentv1.Agent
	end         *agentv1.AgentDeleting // how it ends, once that began
	firstItem   string
	quarantined string // why a message was put aside
	facts       int64
	// resting: its last turn ended in order and nothing waits in its lane.
	resting bool
	// lastWait is the wait that its last turn ended with, if it ended with one.
	lastWait string
	lastTurn *agentv1.Turn
	lastText string
	children []*agentv1.Delegation
}

// child reads an agent; rec is nil if it does not exist.
func (s *Service) child(ctx context.Context, k key) (childState, error) {
	c, _, err := journal.View(ctx, s.engine.For(k.Namespace, k.ID), func(st *State) (childState, error) {
		a := st.lookup(k)
		if a == nil {
			return childState{}, nil
		}
		return a.asChild(), nil
	})
	return c, err
}

func (a *agentState) asChild() childState {
	c := childState{rec: a.rec, end: a.ended, firstItem: a.firstItem, facts: a.facts}
	for m := range a.lane.Finished() {
		if m.GetState() == agentv1.MessageState_MESSAGE_STATE_QUARANTINED {
			c.quarantined = cmp.Or(m.GetStateReason(), "a message was quarantined")
		}
	}
	for _, d := range a.delegations {
		c.children = append(c.children, d.rec)
	}
	if n := len(a.turns); n > 0 {
		c.lastTurn = a.turns[n-1].rec
	}
	for _, t := range slices.Backward(a.turns) {
		for _, r := range slices.Backward(t.rounds) {
			c.lastText = cmp.Or(c.lastText, r.GetText())
		}
	}
	c.resting = a.turn == nil && a.lane.Len() == 0 && a.woken == nil &&
		c.lastTurn.GetState() == agentv1.TurnState_TURN_STATE_COMPLETED
	if c.lastTurn.GetEndReason() == "wait_for" {
		c.lastWait = a.lastWait()
		c.resting = c.resting && c.lastWait != ""
	}
	return c
}

// lastWait is the wait that the last turn ended with.
func (a *agentState) lastWait() string {
	t := a.turns[len(a.turns)-1]
	if len(t.rounds) == 0 {
		return ""
	}
	for _, r := range t.rounds[len(t.rounds)-1].GetToolResults() {
		if r.GetToolName() == toolWaitFor && r.GetStatus() == statusSuccess {
			return r.GetResult().GetFields()["wait"].GetStructValue().GetFields()["wait_id"].GetStringValue()
		}
	}
	return ""
}

// givenUp says whether the wait that a child's last turn ended with was cancelled.
// One that was answered wakes the child, and the wake may be on its way; one that
// was given up wakes nobody.
func (s *Service) givenUp(ctx context.Context, k key, waitID string) (bool, error) {
	conn, err := s.deps.Conn("waiting")
	if err != nil {
		return false, err
	}
	r, err := waitingv1.NewWaitingServiceClient(conn).GetWait(ctx, &waitingv1.GetWaitRequest{AgentId: k.ID, WaitId: waitID})
	if err != nil && fault.From(err).Code() == codes.NotFound {
		return true, nil // it ended so long ago that it is in memory no more
	}
	return r.GetWait().GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_CANCELLED, err
}

// verdict is what the other planes say of a child that rests.
type verdict struct {
	done   bool
	again  bool // what they say is not told to everybody yet
	result string
}

// verdictOn says whether a child is done: no open item, no wait, no running
// task (SPEC A12). An interest or a timer is no wait: it stops nothing (SPEC W8),
// and one that was forgotten would hold its parent's result back for ever. A finished turn alone is not a finished task (upstream #1765).
// The facts are of four planes; where one may not have heard of another's yet,
// the look is repeated.
func (s *Service) verdictOn(ctx context.Context, k key, c childState) (verdict, error) {
	q, err := s.deps.Work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: k.ID, OmitPlans: true})
	if err != nil || q.GetCounts().GetOpen() > 0 {
		return verdict{}, err
	}
	if q.GetCounts().GetCompleted() > 0 && c.firstItem == "" {
		return verdict{again: true}, nil // its making is on its way to this plane
	}
	waits, err := s.deps.Waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: k.ID, PageSize: 500})
	if err != nil {
		return verdict{}, err
	}
	for _, w := range waits.GetWaits() {
		if w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT && w.GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE {
			return verdict{}, nil
		}
	}
	if c.lastWait != "" {
		if over, err := s.givenUp(ctx, k, c.lastWait); err != nil || !over {
			return verdict{}, err
		}
	}
	v, err := s.tasksDone(ctx, k, c.lastTurn)
	if err != nil || !v.done {
		return v, err
	}
	v.result, err = s.resultOf(ctx, k, c, q)
	return v, err
}

// tasksDone says whether nothing runs for an agent, and whether it was told of
// all that ended since its last turn began: a result that is on its way is a
// message that is not queued yet.
func (s *Service) tasksDone(ctx context.Context, k key, last *agentv1.Turn) (verdict, error) {
	tasks, err := s.tasks()
	if err != nil {
		return verdict{}, err
	}
	r, err := tasks.ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: k.ID, IncludeTerminal: true, PageSize: 500})
	if err != nil || r.GetTotalActive() > 0 {
		return verdict{}, err
	}
	var since []string
	for _, t := range r.GetTasks() {
		if !t.GetEndedAt().AsTime().Before(last.GetStartedAt().AsTime()) {
			since = append(since, t.GetTaskId())
		}
	}
	told, _, err := journal.View(ctx, s.engine.For(k.Namespace, k.ID), func(st *State) (bool, error) {
		a := st.lookup(k)
		for _, taskID := range since {
			if a != nil && a.lane.Get(a.messageOf(taskID)) == nil && !slices.Contains(a.answered, taskID) {
				return false, nil
			}
		}
		return true, nil
	})
	return verdict{done: told, again: !told}, err
}

// resultOf is what a child hands over: the report of its item, else of the item
// that was reported last, else its last words (SPEC A12).
func (s *Service) resultOf(ctx context.Context, k key, c childState, q *workv1.GetWorkQueueResponse) (string, error) {
	if c.firstItem != "" {
		it, err := s.subject(ctx, &agentv1.Message{AgentId: k.ID, WorkItemId: c.firstItem})
		if err != nil {
			return "", err
		}
		if it.GetResultSummary() != "" {
			return clipped(it.GetResultSummary()), nil
		}
	}
	for _, it := range q.GetCompletedRecent() {
		if it.GetResultSummary() != "" {
			return clipped(it.GetResultSummary()), nil
		}
	}
	return clipped(c.lastText), nil
}

// tasks is the task plane.
func (s *Service) tasks() (taskv1.TaskServiceClient, error) {
	conn, err := s.deps.Conn("task")
	if err != nil {
		return nil, err
	}
	return taskv1.NewTaskServiceClient(conn), nil
}

// tendDeleting ends what other planes hold for an agent, and the agent when
// nothing is left. They hear of the deletion by its event and act by their own
// rules; what is theirs alone is only waited for.
func (s *Service) tendDeleting(ctx context.Context, k key, c childState) (again bool, err error) {
	for _, left := range []func(context.Context, key, childState) (bool, error){s.childrenLeft, s.tasksLeft, s.waitsLeft, s.itemsLeft} {
		if some, err := left(ctx, k, c); some || err != nil {
			return true, err
		}
	}
	return false, s.step(ctx, k, "EndDeletion", func(a *agentState, env journal.Env) []*journal.Event {
		if a.rec.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_DELETING {
			return nil
		}
		return a.deleted(env)
	})
}

// childrenLeft has the private descendants end first.
func (s *Service) childrenLeft(ctx context.Context, k key, c childState) (some bool, err error) {
	for _, d := range c.children {
		ck := ref.Agent{Namespace: k.Namespace, ID: d.GetChildAgentId()}
		child, err := s.child(ctx, ck)
		if err != nil {
			return false, err
		}
		if isOpen(d) || child.rec != nil && child.rec.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_DELETED {
			some = true
			s.supervision.expect(k.Namespace, d)
		}
	}
	return some, nil
}

// tasksLeft waits for the agent's tasks, and for the end of the one that its
// parent holds: a child is cleaned up after its result was delivered.
func (s *Service) tasksLeft(ctx context.Context, k key, c childState) (bool, error) {
	tasks, err := s.tasks()
	if err != nil {
		return false, err
	}
	r, err := tasks.ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: k.ID, PageSize: 1})
	if err != nil || r.GetTotalActive() > 0 || c.rec.GetSupervisorAgentId() == "" {
		return r.GetTotalActive() > 0, err
	}
	d, _, err := s.delegationOf(ctx, ref.Agent{Namespace: k.Namespace, ID: c.rec.GetSupervisorAgentId()}, c.rec.GetDelegationId())
	if err != nil || d == nil {
		return false, err
	}
	t, err := tasks.GetTask(ctx, &taskv1.GetTaskRequest{AgentId: d.rec.GetParentAgentId(), TaskId: d.rec.GetTaskId()})
	if err != nil && fault.From(err).Code() == codes.NotFound {
		return true, nil // the task plane has not heard of the delegation yet
	}
	return err == nil && !t.GetTask().GetTerminal(), err
}

func (s *Service) waitsLeft(ctx context.Context, k key, _ childState) (bool, error) {
	conn, err := s.deps.Conn("waiting")
	if err != nil {
		return false, err
	}
	waiting := waitingv1.NewWaitingServiceClient(conn)
	waits, err := s.deps.Waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: k.ID, PageSize: 1})
	if err != nil || len(waits.GetWaits()) > 0 {
		return len(waits.GetWaits()) > 0, err
	}
	triggers, err := waiting.ListExternalTriggers(ctx, &waitingv1.ListExternalTriggersRequest{AgentId: k.ID, PageSize: 1})
	if err != nil || len(triggers.GetTriggers()) > 0 {
		return len(triggers.GetTriggers()) > 0, err
	}
	timers, err := waiting.ListTimers(ctx, &waitingv1.ListTimersRequest{AgentId: k.ID, PageSize: 1})
	return len(timers.GetTimers()) > 0, err
}

// ownerDeleted is the blocker of the items that a deleted agent leaves.
const ownerDeleted = "owner_deleted"

// itemsLeft gives the open items their blocker. The work plane does that itself
// for as many as go into one frame; these are the others.
func (s *Service) itemsLeft(ctx context.Context, k key, _ childState) (some bool, err error) {
	conn, err := s.deps.Conn("work")
	if err != nil {
		return false, err
	}
	work := workv1.NewWorkServiceClient(conn)
	for token := ""; ; {
		r, err := work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: k.ID, Filter: workv1.WorkItemFilter_WORK_ITEM_FILTER_OPEN, PageSize: 100, PageToken: token})
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
	UpdateWorkItem(ctx context.Context, in *workv1.UpdateWorkItemRequest, opts ...grpc.CallOption) (*workv1.UpdateWorkItemResponse, error)
}, it *workv1.WorkItem) error {
	blocker := ownerDeleted
	_, err := work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{AgentId: it.GetAgentId(), WorkItemId: it.GetWorkItemId(), BlockedBy: &blocker})
	if err != nil && fault.From(err).Reason() == fault.WorkItemCompleted {
		return nil // an operator was quicker
	}
	return err
}
