// Package fault is the one form in which Quartet refuses something.
//
// A fault is a canonical gRPC code, a reason from the documented list in
// reasons.go, a sentence for people and metadata for programs (SPEC X5). It
// keeps its identity across the wire: a client that rebuilds it with From can
// ask errors.Is(err, fault.WorkItemCompleted) exactly as code in the same
// process can.
//
// Internal text never crosses. An error that is not a fault becomes INTERNAL
// with a random error_id; the same id stands in the server's log beside the
// original text.
package fault
