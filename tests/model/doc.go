// Package model tests the heart of the system against a small model of it: the
// real agent, work, waiting, task and scheduler services over journals in memory
// are driven by random steps, and what they answer and show once they are quiet
// must be what a few plain values say that S0, S1, S3 and the SPEC demand.
//
//	go test ./tests/model -steps 1000000 -seed 7
//
// A failure prints its seed and the shortest list of steps that still fails.
package model
