// Package agent is the agent plane: who thinks, and when.
//
// Owns: agents and how they are controlled, their lanes of messages, turns with
// their rounds, the lease of the one open run, delegations to private children,
// briefs, and the record of what the scheduler decided.
//
// Never does: decide whom to wake, write a work item, or run a command. Tool
// calls of a round go to the plane that owns them, with the run's identity.
//
// Reads: task_completed, task_failed, task_cancelled, task_interrupted, task_cancelling
// of the task plane; trigger_delivered, timer_fired, wait_registered, wait_resolved,
// wait_cancelled, wait_triggered, wait_rechecked of the waiting plane; work_item_created,
// work_item_completed, report_promoted of the work plane.
//
// Emits: agent_spawned, agent_paused, agent_resumed, agent_stopped, agent_started,
// agent_deleting, agent_deleted, agent_woken; message_queued, message_dequeued,
// message_requeued, message_processed, message_interjected, message_aborted,
// message_dropped, message_quarantined; turn_started, turn_completed, turn_failed,
// turn_interrupted, turn_aborted; local_calls_started, round_submitted, tool_result_recorded,
// round_settled;
// delegation_opened, delegation_updated, delegation_completed, first_item_noted;
// brief_written, task_answered, decision_recorded.
package agent
