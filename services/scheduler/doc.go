// Package scheduler decides whom to wake, and can say why.
//
// Owns: nothing. Its one pure function, Plan, turns an agent's facts into a
// decision; the agent plane records it.
//
// Never does: change a focus, clear a blocker, complete an item (SPEC D3).
//
// Reads: facts of the agent plane, the queue of the work plane, and the events
// of agent, work and waiting, which only say which agents to evaluate. Losing, repeating
// or reordering them changes nothing but time (SPEC D1).
//
// Emits: nothing of its own; decision_recorded is written by the agent plane.
package scheduler
