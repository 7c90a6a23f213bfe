// Package workers has `quartet worker`, which executes commands of agents or steps
// of boards on this machine.
//
// Owns: the flags of a worker, and the protocol between a worker and the handler
// of its steps.
// Never does: execute commands of agents itself; the binary passes a worker.
// Reads: assignments of the server; stdout, stderr and exit codes of handlers.
// Emits: results of steps; processes.
package workers
