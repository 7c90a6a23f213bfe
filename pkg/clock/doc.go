// Package clock is where Quartet reads the time, and Due is what fires its
// timers, leases and rechecks.
//
// Records in a journal say when something is due; Due is an index of those
// times, rebuilt from state by the partition's owner after a restart, when
// overdue keys fire once and at once (SPEC P4, X14). It never fires before
// the time, never twice, and holds no truth of its own.
package clock
