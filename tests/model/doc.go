// Package model tests the planes and the scheduler against a small model of them: the
// real agent, work, waiting, task and scheduler services, over journals in memory, execute
// random steps, and their responses and their state once they are quiet must equal those
// of the model, which follows docs/spec.
//
//	go test ./tests/model -steps 1000000 -seed 7
//
// A failure prints its seed and the shortest list of steps that still fails.
package model
