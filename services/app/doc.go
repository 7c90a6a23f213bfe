// Package app is the composition root: it turns settings into a table of
// modules and runs them as one process.
//
// Owns: configuration, the module table, the process's gRPC server, connections
// between services, the installation's key.
//
// Never does: anything that a plane could do. There is no branch for "all in
// one process" here: pkg/rpc reaches a service of this process in memory and any
// other over TCP, and callers do not see the difference.
package app
