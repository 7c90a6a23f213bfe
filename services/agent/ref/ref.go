// Package ref holds the keys by which the agent plane indexes its records. They
// are plain comparable values.
package ref

import "quartet/pkg/plane"

// Agent identifies an agent within the installation: agent ids are unique in
// their namespace only.
type Agent = plane.Key

// Request identifies a request of AcquireTurn. The namespace is that of the
// caller's credential, which differs from the agent's where a runner serves
// every namespace.
type Request struct{ Namespace, Caller, RequestID string }
