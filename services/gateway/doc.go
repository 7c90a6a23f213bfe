// Package gateway serves everything that does not speak gRPC: REST,
// the event stream over HTTP, deliveries to external triggers, probes. It also
// serves EventService, which reads all journals at once.
//
// Owns: the translation between HTTP and gRPC, and event cursors. It has no state: any
// number of gateways may run, and a client may use its cursor at another one.
// Never does: decide anything. A request is forwarded to its plane with the caller as actor
// (SPEC X4), and the response or error of the plane is returned (SPEC X5).
// Reads: the journals of the agent, work, task, waiting and board planes.
// Emits: nothing.
//
// The form of REST (SPEC X13) is ProtoJSON. Names of fields are lowerCamelCase in responses,
// and either form in requests. Responses omit fields without a value, so an absent list is an
// empty one, and write enums by their full names. Requests may name enums in full or in the
// short form of tools ("needs_input"), and 64-bit integers as numbers or strings. Unknown
// fields are refused, in bodies and in query strings. A stream is lines of {"result":…}, and
// {"error":…} if it fails; GET /v1/events also serves server-sent events.
package gateway
