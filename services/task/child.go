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

// inputToChild hands a supervisor's words to its child. The agent plane has the
// word whether the child still takes them, so that none is accepted and lost.
func (s *Service) inputToChild(ctx context.Context, t *taskv1.Task, principal string, req *taskv1.SendTaskInputRequest) (*taskv1.SendTaskInputResponse, error) {
	refused := func(reason string) (*taskv1.SendTaskInputResponse, error) {
		return &taskv1.SendTaskInputResponse{InputTarget: rules.ChildFollowUp, Reason: reason}, nil
	}
	switch {
	case s.deps.Children == nil, req.GetText() == "":
		return refused(rules.RefusedNoInput) // a child's input does not end before the child does
	case t.GetState() != taskv1.TaskState_TASK_STATE_RUNNING:
		return refused(rules.RefusedNotRunning)
	}
	requestID := ""
	if req.GetRequestId() != "" {
		requestID = id.Derived("flw_", principal, t.GetTaskId(), req.GetRequestId())
	}
	err := s.deps.Children.FollowUp(ctx, t.GetChildAgentId(), requestID, req.GetText())
	switch f := fault.From(err); {
	case err == nil:
		return &taskv1.SendTaskInputResponse{AcceptedInput: true, InputTarget: rules.ChildFollowUp, BytesWritten: int64(len(req.GetText()))}, nil
	case f.Reason() == fault.AgentDeleted:
		return refused(rules.RefusedNotRunning)
	case f.Reason() == fault.Overloaded:
		return refused(rules.RefusedBacklog)
	case f.Code() == codes.NotFound:
		return refused(rules.RefusedUnreachable) // it is being made
	}
	return nil, err
}

// childText is what a parent reads of a child: how it stands while it lives,
// and what came of it then. Never its rounds, trace or context (SPEC A2).
func (s *Service) childText(ctx context.Context, t *taskv1.Task) (string, error) {
	if s.deps.Children == nil {
		return "", nil
	}
	if model.Terminal(t.GetState()) {
		return s.deps.Children.Result(ctx, t.GetAgentId(), t.GetDelegationId())
	}
	return s.deps.Children.Progress(ctx, t.GetChildAgentId())
}
