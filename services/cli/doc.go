// Package cli is the command line: the client of every plane, and the entry
// point of the servers, which cmd/quartet passes to it.
//
// Owns: the root command, its help and its groups. The commands of each topic are
// in the packages below: agents, work, boards, workers, events, admin, setup and local.
// They share session (connection and credential), input (arguments and
// values of flags), output (tables and text) and exit (errors and exit codes).
// Never does: decide anything, keep state, import a service.
// Reads: flags, QUARTET_ADDRESS, QUARTET_TOKEN, QUARTET_TOKEN_FILE, NO_COLOR.
// Emits: gRPC calls; each mutation has a request id, so that one with an unknown
// outcome can be repeated (SPEC X2).
package cli
