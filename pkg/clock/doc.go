// Package clock provides the time, as an interface that tests replace, and Due, an index of
// due times for timers, leases and rechecks.
//
// The records in a journal say when something is due. Due is derived from them: the owner of
// a partition rebuilds it after a restart, and overdue keys fire immediately (SPEC P4, X14). A
// key never fires before its time, and at most once for each Set.
package clock
