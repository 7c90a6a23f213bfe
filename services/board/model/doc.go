// Package model is the state of the board plane and its fold: boards with their
// steps, and the sessions, runs, dispatches and pools of a partition.
//
// It is pure: it has no clock, no I/O and no goroutines. State.Apply folds every
// event of the plane. Board.Apply folds the events that are lines of a board's WAL,
// so that a board that is replayed from its WAL equals the live one. Rules read this
// state and never change it.
//
//	State   sessions (boards by id), runs, pools, deleted owners
//	Board   steps in the order of creation, counts, ready steps by pool, WAL lines
//	Step    record, dependencies, dependents
//	Run     record, its board, the step that it claimed
package model
