package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"quartet/pkg/admission"
	"quartet/pkg/fault"
)

type serverStream struct {
	grpc.ServerStream
	ctx    context.Context //nolint:containedctx // grpc.ServerStream hands its context out by a method
	server *server
	method string // its full name
	// single says that the stream has one message of the caller, which must arrive in time.
	single bool
	// turn is that of the last message of the caller if single is false. Only RecvMsg uses it.
	turn *admission.Turn
}

func (s *server) newServerStream(ctx context.Context, ss grpc.ServerStream, info *grpc.StreamServerInfo) *serverStream {
	return &serverStream{ServerStream: ss, ctx: ctx, server: s, method: info.FullMethod, single: !info.IsClientStream}
}

func (s *serverStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream. It refuses a message that is beyond what the caller's key is limited to, and
// waits a little for its turn if the stream has many. It does not check a message that is relayed to another process:
// that one decodes it, and checks it by the limits of the caller's own credential, which is forwarded with the call.
func (s *serverStream) RecvMsg(m any) error {
	receive := s.ServerStream.RecvMsg
	if s.single {
		receive = func(m any) error { return s.server.receive(s.ServerStream, s.method, m) }
	}
	s.turn.Leave()
	if err := receive(m); err != nil {
		return err
	}
	if !s.single {
		s.turn = s.server.cfg.Admission.Step(s.ctx, ActorFrom(s.ctx).Namespace)
		s.turn.LeaveSoon()
	}
	if _, relayed := m.(*raw); relayed {
		return nil
	}
	return s.server.checkLimits(s.ctx, s.method, m)
}

// SendMsg implements grpc.ServerStream. It ends the call if the caller does not receive within Config.SendTime, so
// that what a slow caller has not read is held for that long at most.
func (s *serverStream) SendMsg(m any) error {
	ctx := s.ServerStream.Context()
	limit := s.server.cfg.SendTime
	late := time.AfterFunc(limit, func() { Abort(ctx, readTooSlowly(limit)) })
	err := s.ServerStream.SendMsg(m)
	if !late.Stop() && err != nil {
		return readTooSlowly(limit)
	}
	return err
}

// Abort ends a stream with an error, also while its handler sends. ctx is that of the stream.
func Abort(ctx context.Context, err error) {
	// Only the stream of the transport can be ended from another goroutine than the handler's.
	if stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface {
		WriteStatus(st *status.Status) error
	}); ok {
		_ = stream.WriteStatus(fault.From(err).GRPCStatus())
	}
}

// readTooSlowly returns the error that ends a stream whose caller has received nothing for d.
func readTooSlowly(d time.Duration) *fault.Error {
	return fault.Overloaded.New("the stream was read too slowly: nothing was received for "+d.String()+
		"; open it again from where it was read to", "bound", "reader")
}
