// Package gateway serves everything that does not speak gRPC: REST,
// the event stream over HTTP, deliveries to external triggers, probes. It also
// serves EventService, which reads all journals at once.
//
// Owns: the translation between HTTP and gRPC, and event cursors. It holds no
// state of its own: any number of gateways may run, and a client may come back
// to another one with the cursor it was given.
// Never does: decide anything. A request goes to its plane with the caller as
// actor (SPEC X4), and what the plane says comes back, errors included
// (SPEC X5).
// Reads: the journals of the agent, work, task and waiting planes.
// Emits: nothing.
//
// The form of REST (SPEC X13): ProtoJSON, lowerCamelCase out, both forms in.
// Fields without a value are left out, so an absent list is an empty one; an
// enum is shown by its full name whenever it is set. Enums are taken by full
// name and in the short form of tools ("needs_input"), 64-bit integers as
// numbers and as strings. What is not known is refused, in bodies and in query
// strings. Streams are lines of {"result":…}, and {"error":…} where one breaks;
// GET /v1/events gives server-sent events as well.
package gateway
