// Package rpc is how services serve and call each other.
//
// A Network returns a connection to a service by name: in memory if the service runs in this
// process (unary calls without HTTP/2, see Server), otherwise over TCP. Callers do not see
// the difference (SPEC R2). NewServer has all interceptors: recovery, credentials, deadline,
// log, metrics and faults.
//
// The actor follows from the credential alone (SPEC X4). A service that calls another on
// behalf of an actor sends its own credential and that actor, which is accepted only because
// of the credential.
package rpc
