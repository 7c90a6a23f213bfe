package turns

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/ref"
	"quartet/services/agent/tools"
)

// reveal puts the secrets back into the answer. The waiting plane gives them
// again under the same request id, since it computes them; so also a repeated
// round has them.
//
// It asks on the plane's own account, under the agent's name: the round may have
// ended the run.
func (s *Service) revealSecrets(ctx context.Context, k ref.Agent, runID string, round *agentv1.Round, resp *agentv1.SubmitRoundResponse) error {
	for i, r := range resp.GetToolResults() {
		if r.GetToolName() != tools.ToolCreateExternalTrigger || r.GetStatus() != tools.StatusSuccess || i >= len(round.GetToolCalls()) {
			continue
		}
		again := s.calls.CallAs(ctx, rpc.Actor{Namespace: k.Namespace, Principal: access.Principal(k), Role: rpc.RoleService}, tools.Scope{
			Agent: k, RunID: runID, TurnID: round.GetTurnId(), WorkItemID: r.GetWorkItemId(),
			RequestID: fmt.Sprintf("%s/%d/%d", runID, round.GetIndex(), i), Remaining: time.Second,
		}, round.GetToolCalls()[i])
		if err := ctx.Err(); err != nil {
			return err
		}
		if again.Result.GetStatus() != tools.StatusSuccess {
			continue // the trigger stands; its secret can be asked for by a new one
		}
		resp.ToolResults = slices.Clone(resp.GetToolResults()) // the state has them too
		whole := proto.CloneOf(r)
		for _, f := range tools.SecretFields {
			if v := again.Result.GetResult().GetFields()[f]; v != nil {
				whole.Result.Fields[f] = v
			}
		}
		resp.ToolResults[i] = whole
	}
	return nil
}
