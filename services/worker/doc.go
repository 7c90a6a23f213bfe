// Package worker executes commands (SPEC T4, T6, T7).
//
// Owns: the processes of the commands it was given, and their output until the
// task plane has stored it.
// Never does: run a command twice under one lease, leave a process of a command that
// ended, give a command the worker's own environment or a directory outside of the
// roots, remove a worktree that has changes.
// Reads: leases, stops, input and orders about worktrees, from one stream to the
// task plane.
// Emits: starts, output, ends and heartbeats, on the same stream. Output and ends
// are repeated after a reconnect until they are acknowledged. Reports about
// worktrees are not repeated; the plane repeats its order if it misses one.
//
//	stream --lease--> command: spawn -> read output -> wait -> drain -> kill group
//	stream <--output, ended-- buffer (bounded, one per command) <--'
package worker
