// Package fault defines the errors that Quartet returns to callers.
//
// A fault consists of a canonical gRPC code, a reason from the documented list in reasons.go, a
// message for people and metadata for programs (SPEC X5). It keeps its identity across the
// wire: a client that converts a status with From can call errors.Is(err,
// fault.WorkItemCompleted) as code in the same process can.
//
// The text of other errors is never sent. They become INTERNAL with a random error_id, which
// the server logs with the original text.
package fault
