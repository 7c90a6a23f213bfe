package tools

import (
	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// ToolCreateExternalTrigger is the only tool whose result has a secret.
const ToolCreateExternalTrigger = "CreateExternalTrigger"

// SecretFields are the fields of that result which are never written to the journal, whose events
// everyone in the namespace may watch (SPEC P3).
var SecretFields = []string{"token", "url", "signing_secret"}

// ConcealSecrets replaces the secrets in a result that is about to be recorded.
func ConcealSecrets(r *agentv1.ToolResult) {
	if r.GetToolName() != ToolCreateExternalTrigger || r.GetStatus() != StatusSuccess {
		return
	}
	for _, f := range SecretFields {
		if r.GetResult().GetFields()[f] != nil {
			r.Result.Fields[f] = structpb.NewStringValue("shown to the caller alone")
		}
	}
}
