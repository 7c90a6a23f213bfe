package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
)

// Conn is a connection to a service as one process sees it: a unary call is a crossing, and so is its answer. Streams
// are not supported.
type Conn struct {
	Queue *Queue
	Of    *Process
	Edge  string // such as "agent>work"
	// Serving returns the process that serves the calls now and a connection to it; nil if there is none.
	Serving func() (*Process, grpc.ClientConnInterface)
	// Around, if set, is called before a service executes a call, and the function that it returns with the outcome as it
	// leaves the service; the latter not for what a dead service says, and not for the second execution of a doubled call.
	Around func(args any) (after func(reply any, err error))
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

var (
	requestFaults  = []Outcome{Lost, Unanswered, Doubled}
	responseFaults = []Outcome{Lost}
)

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	msg, _ := args.(proto.Message)
	out, _ := reply.(proto.Message)
	edge := "call " + c.Edge + " " + method[1+lastSlash(method):] + " " + digest(msg)
	name := c.Queue.Name(ctx, edge)
	o, err := c.Queue.Park(ctx, Crossing{Name: name, Of: c.Of, Faults: requestFaults})
	switch {
	case err != nil:
		return fault.From(err)
	case o == Died || o == Kept:
		return broken("the caller is dead", "none")
	case o == Lost:
		return broken("the call was lost", "unknown")
	}
	if o == Doubled {
		c.again(ctx, name, method, args, out)
	}
	to, conn := c.Serving()
	err = broken("nobody serves it", "none")
	if conn != nil {
		inner, after := Because(ctx, name), func(any, error) {}
		if c.Around != nil {
			after = c.Around(args)
		}
		err = conn.Invoke(inner, method, args, reply, opts...)
		if !to.isDead() {
			after(reply, err)
		}
	}
	if to.isDead() { // whatever it answered is lost with it
		err = broken("the service died", "unknown")
	}
	done, parkErr := c.Queue.Park(ctx, Crossing{Name: "answer " + name, Of: c.Of, Faults: responseFaults})
	switch {
	case parkErr != nil:
		return fault.From(parkErr)
	case done != Pass || o == Unanswered:
		return broken("the answer was lost", "unknown")
	}
	return err
}

// lateCall is how long a repetition of a call, whose answer nobody receives, goes on at most.
const lateCall = time.Minute

// again has a call executed a second time: before the first execution, during it, or later, also when its caller is dead,
// since the network has it.
func (c *Conn) again(ctx context.Context, name, method string, args any, out proto.Message) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateCall)
	if msg, ok := args.(proto.Message); ok {
		args = proto.CloneOf(msg)
	}
	go func() {
		defer cancel()
		if o, err := c.Queue.Park(ctx, Crossing{Name: "again " + name}); err != nil || o != Pass {
			return
		}
		_, conn := c.Serving()
		if conn == nil {
			return
		}
		if c.Around != nil {
			c.Around(args)
		}
		_ = conn.Invoke(Because(ctx, "again "+name), method, args, out.ProtoReflect().New().Interface())
	}()
}

// NewStream implements grpc.ClientConnInterface.
func (c *Conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, broken("streams are not simulated", "none")
}

// broken returns the error of a broken connection.
func broken(why, outcome string) error {
	return fault.New(codes.Unavailable, fault.NotReady, "sim: "+why, "outcome", outcome)
}

func lastSlash(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '/' {
			return i
		}
	}
	return -1
}

// digest returns a short hash of what a message says.
func digest(m proto.Message) string {
	if m == nil {
		return "-"
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return "-"
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:5])
}
