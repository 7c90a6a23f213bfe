package rpc

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/tap"

	"quartet/pkg/admission"
	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
)

// A call that arrives over a connection is authenticated and authorized before its message is read, on
// the goroutine of the call, so that a credential that takes long to check delays no other call of the
// connection. gRPC has this order for streams only: it gives a unary interceptor the message. Therefore
// the unary methods are registered as streams of one message each way, which on the wire they are.

const (
	// defaultReceiveTime is the default of Config.ReceiveTime.
	defaultReceiveTime = DefaultDeadline
	// receiveOpen is the same for methods that need no credential.
	receiveOpen = 5 * time.Second
	// headerMax is the largest header of a call, in bytes: a token of 16 KiB, an actor and a trace.
	headerMax = 32 << 10
	// readBuffer is the buffer of a connection for what it receives. Larger frames do not pass
	// through it.
	readBuffer = 8 << 10
	// handshakeTime is how long the handshakes of TLS and HTTP/2 may take.
	handshakeTime = 10 * time.Second
)

// overConnections returns desc with its unary methods as streams, so that arrive is called before the message of a call
// is received.
func (s *Server) overConnections(desc *grpc.ServiceDesc) *grpc.ServiceDesc {
	out := *desc
	out.Methods = nil
	out.Streams = append([]grpc.StreamDesc(nil), desc.Streams...)
	for _, m := range desc.Methods {
		full := "/" + desc.ServiceName + "/" + m.MethodName
		out.Streams = append(out.Streams, grpc.StreamDesc{
			StreamName: m.MethodName,
			Handler: func(impl any, ss grpc.ServerStream) error {
				ctx, turn, err := s.arrive(ss.Context(), full)
				if err != nil {
					return err
				}
				defer turn.Leave()
				resp, err := m.Handler(impl, ctx, func(into any) error { return s.receive(ss, full, into) }, s.unary)
				if err != nil {
					return err
				}
				return ss.SendMsg(resp)
			},
		})
	}
	return &out
}

// arrival marks the context of a call that was authorized before its message was received. The
// context of a call within the process, which is derived from it, has another transport stream.
type arrival struct{ stream grpc.ServerTransportStream }

type arrivalKey struct{}

// arrived reports whether ctx is that of a call that was authorized already.
func arrived(ctx context.Context) bool {
	a, ok := ctx.Value(arrivalKey{}).(arrival)
	return ok && a.stream == grpc.ServerTransportStreamFromContext(ctx)
}

// arrive authenticates and authorizes a unary call, and waits for its turn, before its message is received. For a
// method that needs no credential it does nothing. The context that it returns says that the call was authorized, so
// that arrived returns true for it. The caller must call Leave of the turn when the call has ended, even if the turn is
// nil, as it is where turns are not counted. A refusal is counted and logged here, since the handler, which counts all
// other calls, does not run.
func (s *server) arrive(ctx context.Context, method string) (context.Context, *admission.Turn, error) {
	if needsNoCredential(method) {
		return ctx, nil, nil
	}
	start := time.Now()
	admitted, err := s.admit(ctx, method)
	var turn *admission.Turn
	if err == nil {
		_, longPoll := s.cfg.Deadlines[method]
		turn, err = s.enter(admitted, longPoll)
	}
	if err != nil {
		m := s.meters.method(method, "unary")
		m.started.Inc()
		e := s.refused(ctx, method, err)
		s.finish(ctx, m, e, start)
		return nil, nil, e
	}
	return context.WithValue(admitted, arrivalKey{}, arrival{grpc.ServerTransportStreamFromContext(ctx)}), turn, nil
}

// admit returns ctx with its caller, or an error if the caller is unknown, may not call the method, or sends too many
// requests. Whether the credential is valid it also reports to the connection, which is bounded until then.
func (s *server) admit(ctx context.Context, method string) (context.Context, error) {
	conn := connOf(ctx)
	ctx, err := s.identity.admit(ctx)
	if conn != nil {
		if err == nil {
			conn.Prove()
		} else {
			conn.Refuse()
		}
	}
	if err != nil {
		return nil, err
	}
	caller := ActorFrom(ctx)
	if err := s.cfg.Admission.Permit(ctx, method, caller); err != nil || Via(ctx) != "" {
		return ctx, err // a request of a service was counted where it entered the installation
	}
	return ctx, s.cfg.Admission.Request(caller.Namespace)
}

// enter waits until an admitted call may run, or is refused. The caller must call Leave of the turn when the call has
// ended, even if the turn is nil. brief says that the call mostly waits, as long polls and streams do: its turn ends
// soon, although the call does not.
func (s *server) enter(ctx context.Context, brief bool) (*admission.Turn, error) {
	turn, err := s.cfg.Admission.Enter(ctx, ActorFrom(ctx))
	if brief {
		turn.LeaveSoon()
	}
	return turn, err
}

// receive receives the only message of a caller's side. It ends the call if the message does not
// arrive in time.
func (s *server) receive(ss grpc.ServerStream, method string, into any) error {
	limit := s.cfg.ReceiveTime
	if needsNoCredential(method) {
		limit = receiveOpen
	}
	ctx := ss.Context()
	late := time.AfterFunc(limit, func() {
		Abort(ctx, fault.Deadline.New("the request did not arrive within "+limit.String()+"; it was not executed"))
	})
	defer late.Stop()
	return ss.RecvMsg(into)
}

// tapUnproven counts the calls of a connection whose caller has shown no valid credential yet. It
// must not block, because it runs where the connection is read.
func tapUnproven(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if conn := connOf(ctx); conn != nil && !conn.Proven() {
		conn.Enter()
		context.AfterFunc(ctx, conn.Leave) // the context ends with the stream, whatever ends it
	}
	return ctx, nil
}

// connOf returns the bounded connection by which a call came, nil if there is none.
func connOf(ctx context.Context) *connlimit.Conn {
	if local(ctx) {
		return nil // a call within the process; the peer in ctx is that of the call that caused it
	}
	return connlimit.FromContext(ctx)
}

// Bound returns a listener for the server's network connections. It bounds what connections cost whose
// callers have shown no valid credential.
func (s *Server) Bound(l net.Listener, limits connlimit.Limits) net.Listener {
	return connlimit.Listen(l, "grpc", limits, s.meters.reg)
}
