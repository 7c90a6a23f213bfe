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
	"quartet/services/task/model"
	"quartet/services/task/rules"
)

// Children reaches the agent plane for the handles of supervised children (SPEC
// T8). Its methods are safe for concurrent use.
type Children interface {
	// FollowUp appends a message to a child's lane, once for each request id. If waitID is not
	// empty, the message answers that question of the child, and FollowUp returns INVALID_ARGUMENT
	// if the question is not open. It returns AGENT_DELETED once the child accepts no messages any more,
	// OVERLOADED while its lane is full, and NOT_FOUND while the child is being created.
	FollowUp(ctx context.Context, childID, requestID, waitID, text string) error
	// Progress describes the state of a running child in a few lines.
	Progress(ctx context.Context, childID string) (string, error)
	// Result returns the result of an ended child.
	Result(ctx context.Context, parentID, delegationID string) (string, error)
}

// follows returns the events of the agent plane that this plane reacts to: those by which handles
// of children begin, get another worktree and end, and the deletion of agents.
func follows() []plane.Followed {
	return []plane.Followed{{
		Plane: "agent", Types: []string{
			"delegation_opened", "delegation_updated", "delegation_completed",
			"agent_deleting",
		},
		Registry: journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto),
		Matters: func(ev *journal.Event) bool {
			p, updated := ev.Payload.(*agentv1.DelegationUpdated)
			return !updated || p.GetDelegation().GetWorktree() != nil
		},
	}}
}

// inputToChild sends a supervisor's message to its child. It refuses an empty message
// and one to a child that does not run. Otherwise the agent plane decides whether the
// child accepts it, so that no message is accepted and then lost. A refusal, also one for
// the reasons that FollowUp states, is a response and not an error.
func (s *Service) inputToChild(ctx context.Context, t *taskv1.Task, principal string,
	req *taskv1.SendTaskInputRequest,
) (*taskv1.SendTaskInputResponse, error) {
	refused := func(reason string) (*taskv1.SendTaskInputResponse, error) {
		return &taskv1.SendTaskInputResponse{InputTarget: rules.ChildFollowUp, Reason: reason}, nil
	}
	switch {
	case s.deps.Children == nil, req.GetText() == "":
		return refused(rules.RefusedNoInput) // the input of a child cannot be closed
	case t.GetState() != taskv1.TaskState_TASK_STATE_RUNNING:
		return refused(rules.RefusedNotRunning)
	}
	requestID := ""
	if req.GetRequestId() != "" {
		requestID = id.Derived("flw_", principal, t.GetTaskId(), req.GetRequestId())
	}
	err := s.deps.Children.FollowUp(ctx, t.GetChildAgentId(), requestID, req.GetWaitId(), req.GetText())
	switch f := fault.From(err); {
	case err == nil:
		return &taskv1.SendTaskInputResponse{
			AcceptedInput: true, InputTarget: rules.ChildFollowUp,
			BytesWritten: int64(len(req.GetText())),
		}, nil
	case f.Reason() == fault.AgentDeleted:
		return refused(rules.RefusedNotRunning)
	case f.Reason() == fault.Overloaded:
		return refused(rules.RefusedBacklog)
	case f.Code() == codes.NotFound:
		return refused(rules.RefusedUnreachable) // the child is being created
	}
	return nil, err
}

// childText returns what a parent may read of a child: its state while it runs, and its result
// once it ended; "" without Deps.Children. It never returns its rounds, trace or context (SPEC
// A2).
func (s *Service) childText(ctx context.Context, t *taskv1.Task) (string, error) {
	if s.deps.Children == nil {
		return "", nil
	}
	if model.Terminal(t.GetState()) {
		return s.deps.Children.Result(ctx, t.GetAgentId(), t.GetDelegationId())
	}
	return s.deps.Children.Progress(ctx, t.GetChildAgentId())
}
