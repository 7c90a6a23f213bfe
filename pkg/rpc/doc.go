// Package rpc is how services serve and call each other.
//
// In process is a network (ARCHITECTURE R2): a Network gives a connection to a
// service by name, within memory if the service runs in this process (unary
// calls without HTTP/2 between, see Server) and over TCP if not, and nobody
// else knows the difference. NewServer puts the
// interceptors in one place: recovery, credentials, deadline, log, metrics and
// faults.
//
// Who acts comes from the credential alone (SPEC X4). A service that calls
// another on behalf of somebody sends its own credential and the original
// actor; the actor is believed only because of the credential.
package rpc
