// Package app is the composition root: it turns settings into a table of
// modules and runs them as one process.
//
// Owns: configuration, the module table, the process's gRPC server, connections
// between services, the installation's key.
//
// Never does: anything that a plane could do. There is no branch for "all in
// one process" here: a service that is served in this process is reached over
// memory, any other over TCP (pkg/rpc), and the code of both is the same.
package app
