// Package waiting is the waiting plane: what agents and work items wait for, and what
// ends the waiting.
//
// Owns: waits and intents, external triggers, timers.
//
// Never does: clear a blocker that its wait did not write, complete an item,
// or judge whether a delivery satisfies the condition of its wait (SPEC P2).
//
// Reads: terminal tasks of the task plane, completed items and refused waits of
// the work plane, operators' messages, completed turns and, once an event of the
// agent plane says so, stopped and deleted agents; for lists also who supervises an agent and
// whose children ask something.
//
// Emits: wait_registered, wait_triggered, wait_consumed, wait_mismatched,
// wait_rechecked, wait_resolved, wait_cancelled, external_trigger_created,
// external_trigger_rotated, external_trigger_cancelled, trigger_expired,
// trigger_delivered, deliveries_counted, timer_created, timer_fired,
// timer_cancelled, task_noted, work_item_noted, agent_noted.
//
// A delivery from outside is published (trigger_delivered, with a wait_triggered for each
// wait that it reached), or, while an earlier one was not seen by a turn, only counted
// (deliveries_counted). Counts are published at most four times a second for a wait, and at
// once when a turn was shown fewer than there are; so a storm costs little, and its last
// delivery is not lost.
package waiting
