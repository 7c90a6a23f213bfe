// Package task is the task plane: managed execution (SPEC section 6).
//
// Owns: tasks and their states, the leases under which workers run commands,
// the output of commands, and the input that was sent to them.
// Never does: run a process, re-run a command whose worker was lost, deliver a
// result; the agent and waiting planes read the terminal event (SPEC T5).
// Reads: its own journal only.
// Emits: task_queued, task_started, task_cancelling, task_input_accepted and
// one of task_completed, task_failed, task_cancelled, task_interrupted, once.
//
//	ExecCommand --> queued --lease--> running --> completed | failed
//	                  |                  |   \--> interrupted (worker lost)
//	                  | StopTask         v
//	                  +-----------> cancelling --> cancelled
package task
