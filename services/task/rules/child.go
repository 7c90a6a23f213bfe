package rules

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// ChildFollowUp is the input_target of a child's handle.
const ChildFollowUp = "child_followup"

// React is the rule for events of the agent plane: it opens, changes and closes handles of
// children. For a deleted agent it records that it gets no new commands (SPEC A8), and stops those
// that it has. It ignores all other events.
func React(s *model.State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	switch p := ev.Payload.(type) {
	case *agentv1.DelegationOpened:
		return openHandle(s, env, ev.Namespace, p.GetDelegation()), nil
	case *agentv1.DelegationUpdated:
		return noteWorktree(s, ev.Namespace, p.GetDelegation()), nil
	case *agentv1.DelegationCompleted:
		return closeHandle(s, env, ev.Namespace, p.GetDelegation()), nil
	case *agentv1.AgentDeleting:
		return ownerDeleted(s, env, ev.Namespace, ev.AgentID, p.GetAgent().GetVisibility() ==
			agentv1.Visibility_VISIBILITY_PRIVATE), nil
	}
	return nil, nil
}

// openHandle creates the parent's handle of a child, unless it exists. It is running at once,
// since a child needs no worker.
func openHandle(s *model.State, env journal.Env, ns string, d *agentv1.Delegation) []*journal.Event {
	if s.Task(d.GetTaskId()) != nil {
		return nil
	}
	queued := &taskv1.Task{
		TaskId: d.GetTaskId(), AgentId: d.GetParentAgentId(), Kind: taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK,
		State: taskv1.TaskState_TASK_STATE_QUEUED, Label: d.GetLabel(), WorkItemId: d.GetParentWorkItemId(),
		ChildAgentId: d.GetChildAgentId(), DelegationId: d.GetDelegationId(), Worktree: d.GetWorktree(), Revision: 1,
		CreatedAt:   d.GetCreatedAt(),
		Traceparent: env.Traceparent,
	}
	started := model.NextRevision(queued)
	started.State, started.StartedAt = taskv1.TaskState_TASK_STATE_RUNNING, model.Timestamp(env.Now)
	return []*journal.Event{
		model.NewEvent(ns, queued, &taskv1.TaskQueued{Task: queued}),
		model.NewEvent(ns, started, &taskv1.TaskStarted{Task: started}),
	}
}

// closeHandle ends the handle with the outcome of its delegation, unless it has ended. The
// event carries the full result, for the message to the parent (SPEC A12).
func closeHandle(s *model.State, env journal.Env, ns string, d *agentv1.Delegation) []*journal.Event {
	r := s.FindTask(ns, d.GetParentAgentId(), d.GetTaskId())
	if r == nil || model.Terminal(r.Task.GetState()) {
		return nil
	}
	t := model.NextRevision(r.Task)
	t.EndedAt, t.OutputBytes = model.Timestamp(env.Now), int64(len(d.GetResultSummary()))
	t.Worktree = d.GetWorktree()
	ev := model.NewEvent(ns, t, nil)
	switch d.GetOutcome() {
	case agentv1.DelegationOutcome_DELEGATION_OUTCOME_COMPLETED:
		t.State, t.EndReason = taskv1.TaskState_TASK_STATE_COMPLETED, ReasonFinished
		ev.Payload = &taskv1.TaskCompleted{Task: t, OutputTail: d.GetResultSummary()}
	case agentv1.DelegationOutcome_DELEGATION_OUTCOME_FAILED:
		t.State, t.EndReason = taskv1.TaskState_TASK_STATE_FAILED, ReasonChildFailed
		ev.Payload = &taskv1.TaskFailed{Task: t, OutputTail: d.GetResultSummary()}
	default:
		t.State, t.EndReason = taskv1.TaskState_TASK_STATE_CANCELLED, ReasonStopped
		ev.Payload = &taskv1.TaskCancelled{Task: t, OutputTail: d.GetResultSummary()}
	}
	return []*journal.Event{ev}
}

// ownerDeleted stops the commands of a deleted agent and records that it gets no new ones
// (SPEC A8), unless that is recorded already. Handles of children end with their delegations.
func ownerDeleted(s *model.State, env journal.Env, ns, agent string, private bool) []*journal.Event {
	o := model.Owner{Namespace: ns, ID: agent}
	if s.Deleted[o] {
		return nil
	}
	events := []*journal.Event{
		{Namespace: ns, AgentID: agent, Payload: &taskv1.OwnerDeleted{AgentId: agent, PrivateChild: private}},
	}
	active := slices.SortedFunc(s.Active(o), func(a, b *model.Record) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	for _, r := range active {
		if !model.IsChild(r.Task) && r.Task.GetState() != taskv1.TaskState_TASK_STATE_CANCELLING {
			events = append(events, stopEvent(env, ns, r, "stopped: its agent was deleted"))
		}
	}
	return events
}

// noteWorktree records the worktree of a child in its handle, if it has changed there.
func noteWorktree(s *model.State, ns string, d *agentv1.Delegation) []*journal.Event {
	r := s.FindTask(ns, d.GetParentAgentId(), d.GetTaskId())
	if r == nil || model.Terminal(r.Task.GetState()) || proto.Equal(r.Task.GetWorktree(), d.GetWorktree()) {
		return nil
	}
	t := model.NextRevision(r.Task)
	t.Worktree = d.GetWorktree()
	return []*journal.Event{model.NewEvent(ns, t, &taskv1.TaskWorktreeChanged{Task: t})}
}
