package turns

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/tools"
)

// revealSecrets puts the secrets back into a response. The waiting plane computes them,
// so it returns them again under the same request id, also for a repeated round: the call is
// recalled, and executed by none. If it is no longer remembered, the secrets stay out. The call
// is made as this plane, under the agent's name: the round may have ended the run.
func (s *Service) revealSecrets(ctx context.Context, k plane.Key, runID string, round *agentv1.Round,
	resp *agentv1.SubmitRoundResponse,
) error {
	for i, r := range resp.GetToolResults() {
		if r.GetToolName() != tools.ToolCreateExternalTrigger || r.GetStatus() != tools.StatusSuccess ||
			i >= len(round.GetToolCalls()) {
			continue
		}

		// Make the call once more, to recall its result.
		again := s.deps.Calls.CallAs(rpc.Recall(ctx), rpc.Actor{
			Namespace: k.Namespace, Principal: access.Principal(k),
			Role: rpc.RoleService,
		}, tools.Scope{
			Agent: k, RunID: runID, TurnID: round.GetTurnId(), WorkItemID: r.GetWorkItemId(),
			RequestID: tools.CallRequestID(runID, round, i), Remaining: time.Second,
		}, round.GetToolCalls()[i])
		if err := ctx.Err(); err != nil {
			return err
		}
		if again.Result.GetStatus() != tools.StatusSuccess {
			continue
		}

		// Copy the secrets into a copy of the result.
		resp.ToolResults = slices.Clone(resp.GetToolResults()) // the state shares them
		complete := proto.CloneOf(r)
		for _, field := range tools.SecretFields {
			if secret := again.Result.GetResult().GetFields()[field]; secret != nil {
				complete.Result.Fields[field] = secret
			}
		}
		resp.ToolResults[i] = complete
	}
	return nil
}
