package turns

import (
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/toolcalls"
)

// Deadlines returns the methods whose calls may last longer than a server's default
// deadline, with the deadline of each.
func Deadlines() map[string]time.Duration {
	return map[string]time.Duration{
		agentv1.AgentService_AcquireTurn_FullMethodName: maxWait + 10*time.Second,
		agentv1.AgentService_SubmitRound_FullMethodName: toolcalls.RoundTimeout + 30*time.Second,
	}
}
