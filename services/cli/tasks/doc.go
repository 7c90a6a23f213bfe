// Package tasks has the commands about tasks: `quartet task`.
//
// Owns: how tasks and their output are shown.
// Never does: execute a command itself.
// Reads: the task plane.
// Emits: calls of the task plane.
package tasks
