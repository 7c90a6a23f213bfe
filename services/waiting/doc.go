// Package waiting is the waiting plane: why something stands still, and what
// starts it again.
//
// Owns: waits and intents, external triggers, timers.
//
// Never does: clear a blocker that its wait did not write, complete an item,
// or judge whether what came is what was hoped for (SPEC P2).
//
// Reads: terminal tasks of the task plane, completed items and refused waits of
// the work plane, operators' messages and completed turns of the agent plane.
//
// Emits: wait_registered, wait_triggered, wait_resolved, wait_cancelled,
// wait_consumed, external_trigger_created, external_trigger_cancelled,
// trigger_delivered, timer_created, timer_fired, timer_cancelled, task_noted,
// work_item_noted.
package waiting
