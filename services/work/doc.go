// Package work is the work plane: what is being achieved.
//
// Owns: work items, the focus of every agent, readiness and candidate classes
// (derived by one function, readiness.go), plan files and the agent home.
//
// Never does: move a focus, clear a blocker or complete an item by itself.
// It neither makes waits nor runs anything.
//
// Reads: the waiting plane's events (wait_registered, wait_triggered,
// wait_resolved, wait_cancelled, wait_consumed), which say what an item waits for;
// agent_deleting of the agent plane.
//
// Emits: work_item_created, work_item_updated, work_item_picked, focus_released,
// work_item_completed, report_promoted, wait_attached, wait_detached,
// wait_attach_refused, recheck_consumed, home_file_written, owner_deleted.
package work
