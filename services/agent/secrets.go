package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// toolCreateExternalTrigger is the one tool whose result holds a secret.
const toolCreateExternalTrigger = "CreateExternalTrigger"

// secretFields of its result never reach the journal, and with it the events
// that everybody of the namespace may watch (SPEC P3).
var secretFields = []string{"token", "url", "signing_secret"}

// conceal takes the secret out of a result that is about to be recorded.
func conceal(r *agentv1.ToolResult) {
	if r.GetToolName() != toolCreateExternalTrigger || r.GetStatus() != statusSuccess {
		return
	}
	for _, f := range secretFields {
		if r.GetResult().GetFields()[f] != nil {
			r.Result.Fields[f] = structpb.NewStringValue("shown to the caller alone")
		}
	}
}

// reveal puts the secrets back into the answer. The waiting plane gives them
// again under the same request id, since it computes them; so also a repeated
// round has them.
//
// It asks on the plane's own account, under the agent's name: the round may have
// ended the run.
func (s *Service) reveal(ctx context.Context, k key, runID string, round *agentv1.Round, resp *agentv1.SubmitRoundResponse) error {
	for i, r := range resp.GetToolResults() {
		if r.GetToolName() != toolCreateExternalTrigger || r.GetStatus() != statusSuccess || i >= len(round.GetToolCalls()) {
			continue
		}
		again := s.callAs(ctx, rpc.Actor{Namespace: k.Namespace, Principal: runPrincipal(k), Role: rpc.RoleService}, callScope{
			agent: k, runID: runID, turnID: round.GetTurnId(), binding: r.GetWorkItemId(),
			requestID: fmt.Sprintf("%s/%d/%d", runID, round.GetIndex(), i), left: time.Second,
		}, round.GetToolCalls()[i])
		if err := ctx.Err(); err != nil {
			return err
		}
		if again.result.GetStatus() != statusSuccess {
			continue // the trigger stands; its secret can be asked for by a new one
		}
		resp.ToolResults = slices.Clone(resp.GetToolResults()) // the state has them too
		whole := proto.CloneOf(r)
		for _, f := range secretFields {
			if v := again.result.GetResult().GetFields()[f]; v != nil {
				whole.Result.Fields[f] = v
			}
		}
		resp.ToolResults[i] = whole
	}
	return nil
}
