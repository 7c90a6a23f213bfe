// Package work has the commands about work items, the tasks that run for them, and what they wait for: `quartet work`,
// `quartet task`, `quartet wait`, `quartet trigger` and `quartet timer`.
//
// Owns: how these records, the queue, an item's history and the output of tasks are shown.
// Never does: keep state; execute a command itself; print a secret that was not just created.
// Reads: the work, task and waiting planes, and events.
// Emits: calls of these planes.
package work
