// Package agents has the commands about agents: `quartet agent` and `quartet
// explain`.
//
// Owns: how agents, messages, turns, rounds, briefs, delegations and decisions are shown.
// Never does: keep state.
// Reads: the agent plane, the scheduler and events.
// Emits: calls of the agent plane.
package agents
