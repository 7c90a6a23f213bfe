// Package task is the task plane: managed execution (SPEC section 6).
//
// Owns: tasks and their states, the leases under which workers run commands,
// the output of commands, the input that was sent to them, and the handles by
// which agents supervise private children. It passes the agent plane's orders
// about their worktrees on to workers.
// Never does: run a process, re-run a command whose worker was lost, deliver a
// result; the agent and waiting planes read the terminal event (SPEC T5).
// Reads: delegation_opened, delegation_updated, delegation_completed and
// agent_deleting of the agent plane.
// Emits: task_queued, task_started, task_cancelling, task_input_accepted,
// task_worktree_changed and one of task_completed, task_failed, task_cancelled, task_interrupted, once;
// owner_deleted.
//
//	ExecCommand --> queued --lease--> running --> completed | failed
//	                  |                  |   \--> interrupted (worker lost)
//	                  | StopTask         v
//	                  +-----------> cancelling --> cancelled
package task
