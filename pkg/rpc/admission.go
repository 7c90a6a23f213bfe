package rpc

import (
	"context"

	"google.golang.org/grpc"

	"quartet/pkg/admission"
)

// Admission decides which calls enter a process, and counts what they use. A process has one, and both of its edges
// ask it: the gRPC server and the gateway.
//
// An edge asks in this order, and answers the call with the first error:
//
//   - Permit, Request and Enter, before it receives the message of the call. The gateway asks Permit last, because it
//     knows the method once it has routed the request.
//   - Fence, and Stream for a stream.
//   - Within for each message of the caller. Step, if there are several.
//   - Unary around the handler, unless the call is a stream. Only the gRPC server has handlers.
//
// All methods are safe for concurrent use. A method that may wait has a context.
type Admission interface {
	// Permit refuses a method that the role of an actor may not call (SPEC X15). It does not wait. It is asked for
	// every call except probes, also for those that services make.
	Permit(ctx context.Context, method string, a Actor) error
	// Request counts a request of a namespace, or refuses it. It is not asked for calls that services make: those
	// were counted where they entered the installation.
	Request(namespace string) error
	// Enter waits until a call or stream that came over a connection may run. The edge must call Leave of the turn,
	// which may be nil, when the call has ended; for streams and long polls it calls LeaveSoon when they begin.
	Enter(ctx context.Context, a Actor) (*admission.Turn, error)
	// Fence refuses a call of a run that does not hold its agent any more (SPEC X12), and passes actors without a run.
	Fence(ctx context.Context, method string, a Actor) error
	// Stream counts a stream of an actor until the edge calls release, or refuses it.
	Stream(a Actor) (release func(), err error)
	// Within refuses a message beyond what the actor's key is limited to (SPEC I17). It is not asked for messages
	// that services send.
	Within(a Actor, method string, req any) error
	// Step waits a little until a stream of a namespace may handle one more message. The edge must call Leave of the
	// turn, which may be nil, before it waits for the next message.
	Step(ctx context.Context, namespace string) *admission.Turn
	// Unary calls handle, or refuses the call.
	Unary(ctx context.Context, method string, req any, handle grpc.UnaryHandler) (any, error)
}

// Unlimited is an Admission that refuses nothing. Embed it to replace single methods.
type Unlimited struct{}

// Permit implements Admission.
func (Unlimited) Permit(context.Context, string, Actor) error { return nil }

// Request implements Admission.
func (Unlimited) Request(string) error { return nil }

// Enter implements Admission. The turn is nil, since calls are not counted.
func (Unlimited) Enter(context.Context, Actor) (*admission.Turn, error) { return nil, nil } //nolint:nilnil // see above

// Fence implements Admission.
func (Unlimited) Fence(context.Context, string, Actor) error { return nil }

// Stream implements Admission.
func (Unlimited) Stream(Actor) (release func(), err error) { return func() {}, nil }

// Within implements Admission.
func (Unlimited) Within(Actor, string, any) error { return nil }

// Step implements Admission.
func (Unlimited) Step(context.Context, string) *admission.Turn { return nil }

// Unary implements Admission.
func (Unlimited) Unary(ctx context.Context, _ string, req any, handle grpc.UnaryHandler) (any, error) {
	return handle(ctx, req)
}
