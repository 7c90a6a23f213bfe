package calls

import (
	"context"
	"fmt"
	"strings"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// Children makes the task plane's calls about private children. That plane owns their tasks.
// The task plane has checked that the caller is the child's parent or may act for it.
// The calls are made as the system, because a parent's credential gives no access to a
// child.
type Children struct{ Planes }

// agents returns a client of the agent plane.
func (c Children) agents() agentv1.AgentServiceClient {
	return agentv1.NewAgentServiceClient(c.To("agent"))
}

// asSystem returns ctx with the system as the actor, in the same namespace.
func asSystem(ctx context.Context) context.Context {
	return rpc.WithActor(ctx, plane.ActorOf(*plane.System(rpc.ActorFrom(ctx).Namespace)))
}

// FollowUp puts a message of the supervisor into the child's lane. Sent from a turn, it has
// no more authority than the messages of that turn; otherwise an agent's has that of a
// runtime instruction, and an operator's that of an operator (SPEC A14.4). waitID is the wait
// of the child that the message answers, or empty.
func (c Children) FollowUp(ctx context.Context, childID, requestID, waitID, text string) error {
	sender := rpc.ActorFrom(ctx)
	req := &agentv1.EnqueueMessageRequest{
		AgentId: childID, RequestId: requestID, Kind: agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP, Text: text,
		SenderRunId: sender.RunID, AnsweredWaitId: waitID,
	}
	if sender.RunID == "" && !sender.HasAny(rpc.RoleAdmin, rpc.RoleOperator) {
		// An agent outside of its turns does not speak with an operator's authority.
		req.MaxAuthority = agentv1.Authority_AUTHORITY_RUNTIME_INSTRUCTION
	}
	_, err := c.agents().EnqueueMessage(asSystem(ctx), req)
	return err
}

// Progress returns a text of one to three lines, each ending with a newline: the child's posture, its
// worktree if it has one, and, if it has a current work item, the item's objective and how many of its
// todos are done. With an error the text is empty.
func (c Children) Progress(ctx context.Context, childID string) (string, error) {
	ctx = asSystem(ctx)
	r, err := c.agents().GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: childID})
	if err != nil {
		return "", err
	}
	a := r.GetAgent()
	text := fmt.Sprintf("%s: %s\n", strings.ToLower(strings.TrimPrefix(a.GetPosture().String(), "POSTURE_")),
		a.GetPostureReason())
	if wt := a.GetWorktree(); wt != nil {
		text += fmt.Sprintf("works in: %s (branch %s, worker %s)\n", wt.GetPath(), wt.GetBranch(), wt.GetWorkerId())
	}
	if a.GetCurrentWorkItemId() == "" {
		return text, nil
	}
	it, err := c.Work().GetWorkItem(ctx, &workv1.GetWorkItemRequest{
		AgentId: childID, WorkItemId: a.GetCurrentWorkItemId(),
	})
	if err != nil {
		return "", err
	}
	done := 0
	for _, t := range it.GetWorkItem().GetTodoList() {
		if t.GetState() == workv1.TodoState_TODO_STATE_COMPLETED {
			done++
		}
	}
	return text + fmt.Sprintf("works on: %s (%d of %d todos done)\n", it.GetWorkItem().GetObjective(), done,
		len(it.GetWorkItem().GetTodoList())), nil
}

// Result returns the result that a delegation of the parent records, "" while it records none.
func (c Children) Result(ctx context.Context, parentID, delegationID string) (string, error) {
	r, err := c.agents().GetDelegation(asSystem(ctx), &agentv1.GetDelegationRequest{
		AgentId: parentID, DelegationId: delegationID,
	})
	return r.GetDelegation().GetResultSummary(), err
}
