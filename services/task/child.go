package task

import (
	"context"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
)

// Why the handle of a child ended (Task.end_reason); reasonStopped is the third.
const (
	reasonFinished    = "finished"
	reasonChildFailed = "child_failed"
)

// childFollowUp is the input target of a child's handle.
const childFollowUp = "child_followup"

// Children is what this plane asks of the agent plane for the handles of
// supervised children (SPEC T8).
type Children interface {
	// FollowUp puts a supervisor's words into a child's lane, once for a request
	// id. AGENT_DELETED: the child takes nothing any more.
	FollowUp(ctx context.Context, childID, requestID, text string) error
	// Progress says in a few lines how a child stands.
	Progress(ctx context.Context, childID string) (string, error)
	// Result is what came of a child.
	Result(ctx context.Context, parentID, delegationID string) (string, error)
}

// follows is what this plane hears of the agent plane: where handles of
// children begin and end, and whose commands are to be stopped.
func follows() []plane.Followed {
	return []plane.Followed{{
		Plane: "agent", Types: []string{"delegation_opened", "delegation_updated", "delegation_completed", "agent_deleting"},
		Registry: journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto),
		Matters: func(ev *journal.Event) bool {
			p, updated := ev.Payload.(*agentv1.DelegationUpdated)
			return !updated || p.GetDelegation().GetWorktree() != nil
		},
	}}
}

// react is the rule for what the agent plane says.
func react(s *State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	switch p := ev.Payload.(type) {
	case *agentv1.DelegationOpened:
		return s.openHandle(env, ev.Namespace, p.GetDelegation()), nil
	case *agentv1.DelegationUpdated:
		return s.noteWorktree(ev.Namespace, p.GetDelegation()), nil
	case *agentv1.DelegationCompleted:
		return s.closeHandle(env, ev.Namespace, p.GetDelegation()), nil
	case *agentv1.AgentDeleting:
		return s.ownerDeleted(env, ev.Namespace, ev.AgentID), nil
	}
	return nil, nil
}

// openHandle makes the parent's handle of a child. It runs from the beginning:
// the child is made without a worker.
func (s *State) openHandle(env journal.Env, ns string, d *agentv1.Delegation) []*journal.Event {
	if s.tasks[d.GetTaskId()] != nil {
		return nil
	}
	queued := &taskv1.Task{
		TaskId: d.GetTaskId(), AgentId: d.GetParentAgentId(), Kind: taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK,
		State: taskv1.TaskState_TASK_STATE_QUEUED, Label: d.GetLabel(), WorkItemId: d.GetParentWorkItemId(),
		ChildAgentId: d.GetChildAgentId(), DelegationId: d.GetDelegationId(), Worktree: d.GetWorktree(), Revision: 1, CreatedAt: d.GetCreatedAt(),
		Traceparent: env.Traceparent,
	}
	started := next(queued)
	started.State, started.StartedAt = taskv1.TaskState_TASK_STATE_RUNNING, stamp(env.Now)
	return []*journal.Event{
		event(ns, queued, &taskv1.TaskQueued{Task: queued}), event(ns, started, &taskv1.TaskStarted{Task: started}),
	}
}

// closeHandle ends the handle as its delegation did. The event carries what
// came of the child, whole, for the parent's message (SPEC A12).
func (s *State) closeHandle(env journal.Env, ns string, d *agentv1.Delegation) []*journal.Event {
	r := s.find(ns, d.GetParentAgentId(), d.GetTaskId())
	if r == nil || terminal(r.task.GetState()) {
		return nil
	}
	t := next(r.task)
	t.EndedAt, t.OutputBytes = stamp(env.Now), int64(len(d.GetResultSummary()))
	t.Worktree = d.GetWorktree()
	ev := event(ns, t, nil)
	switch d.GetOutcome() {
	case agentv1.DelegationOutcome_DELEGATION_OUTCOME_COMPLETED:
		t.State, t.EndReason = taskv1.TaskState_TASK_STATE_COMPLETED, reasonFinished
		ev.Payload = &taskv1.TaskCompleted{Task: t, OutputTail: d.GetResultSummary()}
	case agentv1.DelegationOutcome_DELEGATION_OUTCOME_FAILED:
		t.State, t.EndReason = taskv1.TaskState_TASK_STATE_FAILED, reasonChildFailed
		ev.Payload = &taskv1.TaskFailed{Task: t, OutputTail: d.GetResultSummary()}
	default:
		t.State, t.EndReason = taskv1.TaskState_TASK_STATE_CANCELLED, reasonStopped
		ev.Payload = &taskv1.TaskCancelled{Task: t, OutputTail: d.GetResultSummary()}
	}
	return []*journal.Event{ev}
}

// ownerDeleted stops an agent's commands, and keeps new ones from beginning
// (SPEC A8). Handles of children end with their delegations.
func (s *State) ownerDeleted(env journal.Env, ns, agent string) []*journal.Event {
	o := owner{ns, agent}
	if s.deleted[o] {
		return nil
	}
	events := []*journal.Event{{Namespace: ns, AgentID: agent, Payload: &taskv1.OwnerDeleted{AgentId: agent}}}
	if of := s.agents[o]; of != nil {
		for _, taskID := range of.ids {
			r := s.tasks[taskID]
			if _, active := of.active[taskID]; !active || isChild(r.task) || r.task.GetState() == taskv1.TaskState_TASK_STATE_CANCELLING {
				continue
			}
			events = append(events, stopEvent(env, ns, r, "stopped: its agent was deleted"))
		}
	}
	return events
}

func isChild(t *taskv1.Task) bool {
	return t.GetKind() == taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK
}

// inputToChild hands a supervisor's words to its child. The agent plane has the
// word whether the child still takes them, so that none is accepted and lost.
func (s *Service) inputToChild(ctx context.Context, t *taskv1.Task, principal string, req *taskv1.SendTaskInputRequest) (*taskv1.SendTaskInputResponse, error) {
	refused := func(reason string) (*taskv1.SendTaskInputResponse, error) {
		return &taskv1.SendTaskInputResponse{InputTarget: childFollowUp, Reason: reason}, nil
	}
	switch {
	case s.deps.Children == nil, req.GetText() == "":
		return refused(refusedNoInput) // a child's input does not end before the child does
	case t.GetState() != taskv1.TaskState_TASK_STATE_RUNNING:
		return refused(refusedNotRunning)
	}
	requestID := ""
	if req.GetRequestId() != "" {
		requestID = id.Derived("flw_", principal, t.GetTaskId(), req.GetRequestId())
	}
	err := s.deps.Children.FollowUp(ctx, t.GetChildAgentId(), requestID, req.GetText())
	switch f := fault.From(err); {
	case err == nil:
		return &taskv1.SendTaskInputResponse{AcceptedInput: true, InputTarget: childFollowUp, BytesWritten: int64(len(req.GetText()))}, nil
	case f.Reason() == fault.AgentDeleted:
		return refused(refusedNotRunning)
	case f.Reason() == fault.Overloaded:
		return refused(refusedBacklog)
	case f.Code() == codes.NotFound:
		return refused(refusedUnreachable) // it is being made
	}
	return nil, err
}

// childText is what a parent reads of a child: how it stands while it lives,
// and what came of it then. Never its rounds, trace or context (SPEC A2).
func (s *Service) childText(ctx context.Context, t *taskv1.Task) (string, error) {
	if s.deps.Children == nil {
		return "", nil
	}
	if terminal(t.GetState()) {
		return s.deps.Children.Result(ctx, t.GetAgentId(), t.GetDelegationId())
	}
	return s.deps.Children.Progress(ctx, t.GetChildAgentId())
}
