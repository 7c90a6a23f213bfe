package state

// Reasons that stand in control_reason or state_reason, where people read them.
const (
	// reasonAgentDeleted is why the messages of a deleted agent are dropped.
	reasonAgentDeleted = "agent_deleted"
	// ReasonOperatorAborted is why the agent of an aborted run is paused.
	ReasonOperatorAborted = "operator_aborted"
	// StaleTickReason begins the reason of a tick that was dropped because it was no longer
	// true. A tick that a control action drops was true.
	StaleTickReason = "stale_tick"
)
