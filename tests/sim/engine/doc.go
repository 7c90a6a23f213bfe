// Package engine runs real components under a seeded scheduler, so that a run is a function of its seed.
//
// All goroutines of a run are in one bubble of testing/synctest. Whatever crosses a seam between them (a
// frame on its way to a log, a call and its answer, a frame on its way to a follower, a command on its way to
// a partition) is parked in a Queue. Once every goroutine is blocked, the Queue lets exactly one crossing pass,
// with an outcome, or lets time pass. The seed chooses both. Crossings are named by what they carry and never by
// the order in which they arrived, which the Go scheduler chooses.
//
// A Process is what dies at once: its parked crossings fail, and nothing it does afterwards passes a seam.
package engine
