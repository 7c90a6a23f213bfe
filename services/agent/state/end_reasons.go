package state

import ()

// operatorAborted is why an aborted turn ended, and why its agent is paused.
const EndOperatorAborted = "operator_aborted"

// agentDeleted is why what belonged to a deleted agent ended.
const EndAgentDeleted = "agent_deleted"

// leaseLost is why a turn ended whose runner fell silent.
const EndLeaseLost = "lease_lost"

// undelivered is the end of a turn whose caller never heard of it: its request
// got nothing and may come again (SPEC X2).
const EndUndelivered = "undelivered"

// staleReason begins the reasons of ticks that are dropped since they are no
// longer true. A tick that an order drops was true.
const StaleTickReason = "stale_tick"
