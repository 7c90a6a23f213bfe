package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
)

// Conn is a connection to a service as one process sees it. A unary call, the answer to it, and each message of a
// stream are crossings.
type Conn struct {
	Queue *Queue
	Of    *Process
	Edge  string // such as "agent>work"
	// Serving returns the process that serves the calls now and a connection to it; nil if there is none.
	Serving func() (*Process, grpc.ClientConnInterface)
	// Around, if set, is called before a service executes a call, and the function that it returns afterwards, with the
	// outcome as it leaves the service; not if the service died.
	Around func(args any) (after func(reply any, err error))
	// Repeated, if set, is called before the additional execution of a doubled call.
	Repeated func(args any)
	// Identify gives each call without a request id one that follows from the crossing's name. Without it, a router
	// gives them ids in the order in which it receives them.
	Identify bool
	// Plain says that a broken connection gives the errors of gRPC, which routers know, and not faults as clients get
	// them.
	Plain bool
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

var (
	requestFaults  = []Outcome{Lost, Unanswered, Doubled}
	responseFaults = []Outcome{Lost}
)

// Invoke implements grpc.ClientConnInterface. Of a call that is lost, or whose caller is dead, the service gets
// nothing. A doubled call is executed a second time, see again. The answer may be lost too, although the call was
// executed; reply may be set then. The errors of a broken connection name the outcome: none or unknown.
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
		return c.broken("the caller is dead", "none")
	case o == Lost:
		return c.broken("the call was lost", "unknown")
	}
	if c.Identify {
		args = identified(msg, name)
	}
	if o == Doubled {
		c.again(ctx, name, method, args, out)
	}
	to, conn := c.Serving()
	err = c.broken("nobody serves it", "none")
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
		err = c.broken("the service died", "unknown")
	}
	done, parkErr := c.Queue.Park(ctx, Crossing{Name: "answer " + name, Of: c.Of, Faults: responseFaults})
	switch {
	case parkErr != nil:
		return fault.From(parkErr)
	case done != Pass || o == Unanswered:
		return c.broken("the answer was lost", "unknown")
	}
	return err
}

// identified returns a call with a request id, if it can have one.
func identified(m proto.Message, name string) proto.Message {
	f := m.ProtoReflect().Descriptor().Fields().ByName("request_id")
	if f == nil || f.Kind() != protoreflect.StringKind || f.IsList() || m.ProtoReflect().Get(f).String() != "" {
		return m
	}
	sum := sha256.Sum256([]byte(name))
	m = proto.Clone(m)
	m.ProtoReflect().Set(f, protoreflect.ValueOfString("req_"+hex.EncodeToString(sum[:12])))
	return m
}

// lateCall is how long a repetition of a call, whose answer nobody receives, goes on at most.
const lateCall = time.Minute

// again makes the call be executed a second time, before the first execution, during it or later, as the scheduler
// chooses, also when its caller is dead by then, since the network has it.
func (c *Conn) again(ctx context.Context, name, method string, args any, out proto.Message) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateCall)
	if msg, ok := args.(proto.Message); ok {
		args = proto.CloneOf(msg)
	}
	// Half of them are late, so that the first execution has had its consequences.
	sum := sha256.Sum256([]byte(name))
	delay := time.Duration(max(0, int(sum[0])-127)) * lateCall / 512
	go func() {
		defer cancel()
		if delay > 0 {
			late := time.NewTimer(delay)
			defer late.Stop()
			select {
			case <-late.C:
			case <-c.Queue.over:
				return
			}
		}
		if o, err := c.Queue.Park(ctx, Crossing{Name: "again " + name}); err != nil || o != Pass {
			return
		}
		_, conn := c.Serving()
		if conn == nil {
			return
		}
		if c.Repeated != nil {
			c.Repeated(args)
		}
		_ = conn.Invoke(Because(ctx, "again "+name), method, args, out.ProtoReflect().New().Interface())
	}()
}

// broken returns the error of a broken connection.
func (c *Conn) broken(why, outcome string) error {
	if c.Plain {
		return status.Error(codes.Unavailable, "sim: "+why)
	}
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
