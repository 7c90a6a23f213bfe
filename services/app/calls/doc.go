// Package calls has what planes ask of each other, as clients of each other's services.
//
// Owns: nothing; it holds the network alone.
// Never does: read another plane's journal, cache an answer, act for a caller in another
// namespace than the caller's own.
// Reads: facts of agents, work items, tasks and delegations.
// Emits: messages of supervisors to their children.
//
//	plane's Deps --> Planes --gRPC--> another plane, here or elsewhere
package calls
