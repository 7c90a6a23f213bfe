// Package agent is the agent plane: who thinks, and when.
//
// Owns: agents, their lanes of messages, turns with their rounds, the lease of
// the one open run, and the record of what the scheduler decided.
//
// Never does: decide whom to wake, write a work item, or run a command. Tool
// calls of a round go to the plane that owns them, with the run's identity.
//
// Reads: task_completed, task_failed, task_cancelled, task_interrupted of the
// task plane; trigger_delivered, timer_fired and wait_resolved of the waiting plane.
//
// Emits: agent_spawned, agent_woken, message_*, turn_*, round_submitted,
// tool_result_recorded, round_settled, decision_recorded.
package agent
