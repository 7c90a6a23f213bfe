// Package worker executes commands (SPEC T4, T6, T7).
//
// Owns: the processes of the commands it was given, and their output until the
// task plane has stored it.
// Never does: run a command twice, keep a process of a command that ended, give
// a command its own environment or a directory outside its roots, remove a
// worktree in which something was changed.
// Reads: leases, stops, input and orders about worktrees, from one stream to the
// task plane.
// Emits: starts, output, ends and heartbeats, on the same stream; output and
// ends are repeated after a reconnect until they are acknowledged. Reports about
// worktrees are not: who needs one asks again.
//
//	stream --lease--> command: spawn -> read output -> wait -> drain -> kill group
//	stream <--output, ended-- buffer (bounded, one per command) <--'
package worker
