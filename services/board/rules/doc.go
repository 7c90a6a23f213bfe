// Package rules decides what commands write: it is the pure functions from the state
// of the board plane, a command, the time and a source of ids to events or a refusal.
//
// A Transition collects the events of one command for one board, together with the
// statuses that the steps will have, over a board that it does not change. A Batch
// has one Transition for each board that a worker's stream touches at once.
package rules
