package projection

import (
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/staletick"
	"quartet/services/agent/state"
)

// StaleTick returns why a tick is no longer true, or "" if it still is or m is none (SPEC D4).
func StaleTick(m *agentv1.Message, p *Projection, a *agentv1.Agent) string {
	why := staletick.Reason(m.GetTick(), staletick.Facts{
		WakePending: p.wake != nil, WakeWaits: p.wake.GetWaitIds(), OwnTriggered: len(p.ownWaits) > 0,
		LastTurnID: a.GetLastTurnId(), Queue: p.GetWorkQueueResponse, Stalled: p.stalled,
	})
	if why == "" {
		return ""
	}
	return state.StaleTickReason + ": " + why
}
