// Package work is the work plane: what agents are to achieve.
//
// Owns: work items, the focus of every agent, readiness and candidate classes
// (derived by one function, derive/readiness.go), plan files and the agent home.
//
// Never does: move a focus, clear a blocker or complete an item by itself; create waits;
// run commands.
//
// Reads: the waiting plane's events (wait_registered, wait_triggered,
// wait_resolved, wait_cancelled, wait_consumed), from which it knows what an item waits
// for; agent_deleting of the agent plane.
//
// Emits: work_item_created, work_item_updated, work_item_picked, focus_released,
// work_item_completed, report_promoted, wait_attached, wait_detached,
// wait_attach_refused, recheck_consumed, home_file_written, owner_deleted.
package work
