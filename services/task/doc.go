// Package task is the task plane: managed execution.
//
// Owns: tasks and their states, the leases under which workers run commands, the
// output of commands, the input that was sent to them, and the handles by which
// agents supervise private children. It sends workers the agent plane's orders about
// worktrees.
// Never does: run a process, run a command again whose worker was lost unless its
// restart policy says so, deliver a result; the agent and waiting planes read the
// terminal event (SPEC T5).
// Reads: delegation_opened, delegation_updated, delegation_completed and
// agent_deleting of the agent plane.
// Emits: task_queued, task_started, task_cancelling, task_restarting,
// task_input_accepted, task_worktree_changed, and once for each task one of
// task_completed, task_failed, task_cancelled and task_interrupted; owner_deleted.
//
//	ExecCommand --> queued --lease--> running --> completed | failed
//	                  |                  |   \--> interrupted (worker lost)
//	                  | StopTask         v
//	                  +-----------> cancelling --> cancelled
//
// The packages below this one import each other downwards only:
//
//	task           the RPC handlers and the wiring
//	  workers      the streams of workers, the leases of commands, dispatch
//	    output     the store of what commands write
//	    rules      commands to events, pure
//	      model    the state and its fold, pure
package task
