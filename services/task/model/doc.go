// Package model is the state of the task plane and its fold: tasks, the queues of
// commands that wait for workers, and which worker has which command.
//
// It is pure: it has no clock, no I/O and no goroutines.
package model
