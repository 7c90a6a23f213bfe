// Package board is the plane of boards: graphs of steps that an orchestrator
// maintains and workers execute (docs/spec/boards.md).
//
// Owns: boards, their steps and the leases on them, worker runs, standing
// dispatches, and the WAL of each board.
//
// Never does: choose between steps by their content, set an order that the graph
// does not give, end a board by itself, or touch a file of a project (S2-012 to
// S2-015, S2-280).
//
// Reads: agent_deleting of the agent plane, which cancels that agent's boards.
//
// Emits: task_created, task_updated, task_running, task_blocked, task_reopened,
// task_step_ready, task_step_claimed, task_step_started, task_step_updated,
// task_step_blocked, task_step_completed, task_step_failed, task_step_cancelled,
// task_step_reopened, task_step_lease_expired, task_completed, task_failed,
// task_cancelled, which are the lines of a board's WAL; and board_terminating,
// child_agent_cancel_timeout, worker_dispatched, worker_run_cancelling, worker_run_ended,
// standing_dispatch_opened, standing_dispatch_closed, owner_deleted, which are not.
//
// The cost of a step does not depend on the size of its board: an event carries only
// what changed, the ready steps of a pool are a bit set in the order of creation, and
// a step counts its dependencies that are not completed.
//
// The packages below this one import each other downwards only:
//
//	board            the RPC handlers and the wiring
//	  workers        the streams of workers, and the leases of runs, in memory
//	    rules        commands to events, pure
//	  patch          the operations of UpdateBoard, pure
//	  wal            the format of a WAL, and its replay
//	    model        the state and its fold, pure
package board
