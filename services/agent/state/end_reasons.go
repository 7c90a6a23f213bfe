package state

// Reasons that the records of agents and messages have, in control_reason and state_reason, for people.
const (
	// reasonAgentDeleted is why the messages of a deleted agent are dropped.
	reasonAgentDeleted = "agent_deleted"
	// ReasonOperatorAborted is why the agent of an aborted run is paused.
	ReasonOperatorAborted = "operator_aborted"
	// StaleTickReason begins the state_reason of a tick that was dropped because it was no longer
	// true. The reason of a tick that a control action dropped begins otherwise.
	StaleTickReason = "stale_tick"
)
