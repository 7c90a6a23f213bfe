// Package waits has the commands about waits, external triggers and timers:
// `quartet wait`, `quartet trigger` and `quartet timer`.
//
// Owns: how these records are shown.
// Never does: keep state; print a secret that was not just created.
// Reads: the waiting plane.
// Emits: calls of the waiting plane.
package waits
