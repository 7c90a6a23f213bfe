// Package board is the plane of boards: DAGs of steps that an orchestrator
// keeps and workers execute (S2's Task Board, docs/s2-conformance.md).
//
// Owns: boards, their steps, the leases on them, worker runs, standing
// dispatches, and each board's WAL.
//
// Never does: choose between steps by what they are about, set an order that
// the DAG does not give, end a board by itself, or touch a file of a project
// (S2-012 to S2-015, S2-280).
//
// Reads: agent_deleting of the agent plane, which ends that agent's boards.
//
// Emits: task_created, task_updated, task_running, task_blocked, task_reopened,
// task_step_ready, task_step_claimed, task_step_started, task_step_updated,
// task_step_blocked, task_step_completed, task_step_failed,
// task_step_cancelled, task_step_reopened, task_step_lease_expired,
// task_completed, task_failed, task_cancelled, which are a board's WAL; and
// board_terminating, child_agent_cancel_timeout, worker_dispatched,
// worker_run_ended, standing_dispatch_opened, standing_dispatch_closed,
// owner_deleted, which are not.
//
// What a step costs does not depend on its board: an event carries what
// changed, the ready steps of a pool are a set of bits in the order of
// creation, and a step knows how many of its dependencies are open.
package board
