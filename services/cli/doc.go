// Package cli is the command line: the client of every plane, and the way in
// to the servers, which it does not know. cmd/quartet brings those along.
//
// Owns: what a person or a script types, and what they see. Tables for eyes,
// one JSON document for programs, errors with a reason and a way out on
// stderr, exit codes that tell a typing mistake from a conflict.
// Never does: decide anything, keep state, import a service.
// Reads: flags, QUARTET_ADDRESS, QUARTET_TOKEN, QUARTET_TOKEN_FILE, NO_COLOR.
// Emits: gRPC calls; each mutation with a request id, so that one whose
// outcome is unknown can be asked for again (SPEC X2).
package cli
