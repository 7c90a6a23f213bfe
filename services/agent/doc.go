// Package agent is the agent plane: who thinks, and when.
//
// Owns: agents and how they are controlled, their lanes of messages, turns with
// their rounds, the lease of the one open run, delegations to private children,
// briefs, and the record of what the scheduler decided.
//
// Never does: decide whom to wake, write a work item, or run a command. Tool
// calls of a round go to the plane that owns them, with the run's identity.
//
// Reads: task_completed, task_failed, task_cancelled, task_interrupted of the
// task plane; trigger_delivered, timer_fired and wait_resolved of the waiting
// plane; work_item_created and report_promoted of the work plane.
//
// Emits: agent_*, message_*, turn_*, round_*, tool_result_recorded, delegation_*,
// brief_written, task_answered, decision_recorded.
package agent
