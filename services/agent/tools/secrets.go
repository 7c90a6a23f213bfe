package tools

import (
	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// toolCreateExternalTrigger is the one tool whose result holds a secret.
const ToolCreateExternalTrigger = "CreateExternalTrigger"

// secretFields of its result never reach the journal, and with it the events
// that everybody of the namespace may watch (SPEC P3).
var SecretFields = []string{"token", "url", "signing_secret"}

// conceal takes the secret out of a result that is about to be recorded.
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
